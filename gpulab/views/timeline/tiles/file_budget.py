"""What a file holds of a scene: as much as there is room for, that first which is looked at first.

Two kinds of pieces, by level and index as tiles are. A tile, as a page draws it, where a stretch holds too much to be
told one by one; and a sheet, of which every box is told, however narrow. From a sheet the page cuts every tile that
lies in it, so beneath a sheet nothing else is needed, and a run of which all is in sheets is in the file as a whole.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.views.timeline.scene.scene import Scene
from gpulab.views.timeline.tiles.encoding import NUMPY, unpacked
from gpulab.views.timeline.tiles.sheets import boxes_within, sheet

WHOLE_LEVELS = 4  # of these, everything: the run as a whole, and a first zoom anywhere
MOST_EVIDENCE = 24  # stretches of evidence that are followed down, of all findings together
SHEET_BOXES = 3_000
KEY_BYTES = 24  # what a piece takes in the file beside its data

Place = tuple[int, int]
Window = tuple[int, int]


@dataclass(frozen=True)
class Held:
    """The pieces of a file: level, index, whether it is a sheet, and its bytes as text."""

    pieces: tuple[tuple[int, int, bool, str], ...]
    whole: bool  # every event of the run is in it


def held(scene: Scene, room_bytes: int) -> Held:
    """Pieces that take at most so many bytes, in order of use: the whole, the first window, the evidence, the rest."""
    header = scene.header()
    packer = _Packer(scene, room_bytes)
    deepest, everything = int(header["deepest"]), (0, scene.span_ns)
    wanted = [(everything, WHOLE_LEVELS - 1), *((window, deepest) for window in _looked_at(header))]
    for window, last in (*wanted, (everything, deepest)):
        for place in packer.missing(window, last):
            if not packer.add(place):
                return Held(tuple(packer.found), whole=False)
    return Held(tuple(packer.found), whole=packer.whole)


def _looked_at(header: Mapping[str, Any]) -> Iterator[Window]:
    """The windows that are looked at first: the one shown, then the longest evidence of each finding in turn."""
    first, last = header["home"]
    yield first, last
    spans = [finding["spans"] for finding in header["findings"] if finding["spans"]]
    turns = [each[turn] for turn in range(MOST_EVIDENCE) for each in spans if turn < len(each)]
    yield from ((start, end) for start, end in turns[:MOST_EVIDENCE])


class _Packer:
    """Makes pieces, and counts their bytes."""

    def __init__(self, scene: Scene, room_bytes: int) -> None:
        self._scene, self._room = scene, room_bytes
        self._sheets: dict[Place, bool] = {}  # of each piece held, whether it is a sheet
        self.found: list[tuple[int, int, bool, str]] = []
        self.whole = True  # nothing was met so far that no sheet could hold

    def missing(self, window: Window, last: int) -> Iterator[Place]:
        """The pieces of this window that are not held yet, level by level, down to the sheets."""
        level_of = [(0, 0)]
        for level in range(last + 1):
            yield from (place for place in level_of if place not in self._sheets)
            parents = [place for place in level_of if not self._sheets.get(place, False)]
            width = self._scene.tile_ns(level + 1)
            level_of = [
                (level + 1, child)
                for _, index in parents
                for child in (2 * index, 2 * index + 1)
                if child * width < min(window[1], self._scene.span_ns) and (child + 1) * width > window[0]
            ]
        self.whole = self.whole and (not level_of or last < self._scene.deepest)

    def add(self, place: Place) -> bool:
        """Hold this piece; False where there is no room for it."""
        level, index = place
        fits = boxes_within(self._scene, level, index) <= SHEET_BOXES
        data = sheet(self._scene, level, index) if fits else self._scene.tile(level, index)
        text = b64encode(gzip.compress(shuffled(data), 6, mtime=0)).decode()
        self._room -= len(text) + KEY_BYTES
        if self._room < 0:
            return False
        self._sheets[place] = fits
        self.found.append((level, index, fits, text))
        return True


def shuffled(tile: bytes) -> bytes:
    """The same bytes in an order that compresses better: of each column all first bytes, then all second ones."""
    head, _ = unpacked(tile)
    out = np.frombuffer(tile, np.uint8).copy()
    for offset, count, width in _arrays(head):
        if count and width > 1:
            column = out[offset : offset + count * width].reshape(count, width)
            out[offset : offset + count * width] = column.T.reshape(-1)
    return out.tobytes()


def _arrays(head: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Where the arrays of a tile lie: offset, number of items, bytes of one."""
    for offset, count, dtype in head["columns"].values():
        yield offset, count, np.dtype(NUMPY[dtype]).itemsize
    for curve in head["curves"]:
        yield curve["offset_at"], curve["count"], 8
        yield curve["offset_low"], curve["count"], 4
        yield curve["offset_high"], curve["count"], 4
