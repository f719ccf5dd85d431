"""Selects the parts of a scene that are stored in an HTML file: within its size limit, the most useful ones first.

There are two kinds of pieces, identified by level and index like tiles: tiles, as the page draws them, and sheets,
which contain every box of their span, however short. The page cuts all finer tiles from a sheet, so nothing below a
sheet is stored. A run that is covered by sheets is in the file completely.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.views.timeline.scene.scene import Scene
from gpulab.views.timeline.tiles.encoding import NUMPY_TYPES, decode_tile
from gpulab.views.timeline.tiles.uncut_spans import count_boxes, encode_sheet

_COMPLETE_LEVELS = 4  # all tiles of these levels are stored: the whole run, and a first zoom anywhere
_MAX_EVIDENCE = 24  # evidence spans that are stored in full detail, of all findings together
MAX_SHEET_BOXES = 3_000
_KEY_BYTES = 24  # size of a piece in the file besides its data

Piece = tuple[int, int]
Window = tuple[int, int]


@dataclass(frozen=True)
class FilePieces:
    """The pieces of a file: level, index, whether it is a sheet, and its bytes as text."""

    pieces: tuple[tuple[int, int, bool, str], ...]
    complete: bool  # whether the file contains every event of the run


def select_pieces(scene: Scene, max_bytes: int) -> FilePieces:
    """Select pieces of at most `max_bytes`: first the whole run, then the initial view, the evidence, and the rest."""
    header = scene.header()
    packer = _Packer(scene, max_bytes)
    deepest, whole_run = int(header["deepest"]), (0, scene.span_ns)
    targets = [(whole_run, _COMPLETE_LEVELS - 1), *((window, deepest) for window in _first_windows(header))]
    for window, last_level in (*targets, (whole_run, deepest)):
        for piece in packer.missing(window, last_level):
            if not packer.add(piece):
                return FilePieces(tuple(packer.pieces), complete=False)
    return FilePieces(tuple(packer.pieces), complete=packer.complete)


def _first_windows(header: Mapping[str, Any]) -> Iterator[Window]:
    """Yield the windows that readers look at first: the initial view, then evidence, one span per finding and round."""
    first, last = header["home"]
    yield first, last
    spans = [finding["spans"] for finding in header["findings"] if finding["spans"]]
    evidence = [each[turn] for turn in range(_MAX_EVIDENCE) for each in spans if turn < len(each)]
    yield from ((start, end) for start, end in evidence[:_MAX_EVIDENCE])


class _Packer:
    """Encodes pieces and counts their bytes."""

    def __init__(self, scene: Scene, max_bytes: int) -> None:
        self._scene, self._free_bytes = scene, max_bytes
        self._is_sheet: dict[Piece, bool] = {}  # for each stored piece
        self.pieces: list[tuple[int, int, bool, str]] = []
        self.complete = True  # sheets have covered every window so far

    def missing(self, window: Window, last_level: int) -> Iterator[Piece]:
        """Yield the pieces of a window that are not stored yet, level by level, down to the sheets."""
        candidates = [(0, 0)]
        for level in range(last_level + 1):
            yield from (piece for piece in candidates if piece not in self._is_sheet)
            parents = [piece for piece in candidates if not self._is_sheet.get(piece, False)]
            width = self._scene.tile_ns(level + 1)
            candidates = [
                (level + 1, child)
                for _, index in parents
                for child in (2 * index, 2 * index + 1)
                if child * width < min(window[1], self._scene.span_ns) and (child + 1) * width > window[0]
            ]
        self.complete = self.complete and (not candidates or last_level < self._scene.max_level)

    def add(self, piece: Piece) -> bool:
        """Store a piece; return False if there is not enough space."""
        level, index = piece
        is_sheet = count_boxes(self._scene, level, index) <= MAX_SHEET_BOXES
        data = encode_sheet(self._scene, level, index) if is_sheet else self._scene.tile(level, index)
        text = b64encode(gzip.compress(shuffle_bytes(data), 6, mtime=0)).decode()
        self._free_bytes -= len(text) + _KEY_BYTES
        if self._free_bytes < 0:
            return False
        self._is_sheet[piece] = is_sheet
        self.pieces.append((level, index, is_sheet, text))
        return True


def shuffle_bytes(tile: bytes) -> bytes:
    """Reorder the bytes of a tile for better compression: for each column all first bytes, then all second bytes."""
    head, _ = decode_tile(tile)
    out = np.frombuffer(tile, np.uint8).copy()
    for offset, count, width in _arrays(head):
        if count and width > 1:
            column = out[offset : offset + count * width].reshape(count, width)
            out[offset : offset + count * width] = column.T.reshape(-1)
    return out.tobytes()


def _arrays(head: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield offset, number of items and item size of each array of a tile."""
    for offset, count, dtype in head["columns"].values():
        yield offset, count, np.dtype(NUMPY_TYPES[dtype]).itemsize
    for curve in head["curves"]:
        yield curve["offset_at"], curve["count"], 8
        yield curve["offset_low"], curve["count"], 4
        yield curve["offset_high"], curve["count"], 4
