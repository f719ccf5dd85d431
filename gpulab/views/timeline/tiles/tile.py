"""Encodes a tile: single boxes with names, links and notes, bins, and curves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.intervals import Ints
from gpulab.views.timeline.queries import box_details
from gpulab.views.timeline.scene.curves import sample_curve
from gpulab.views.timeline.scene.elements import Boxes, Curve, Floats
from gpulab.views.timeline.scene.placed_run import PlacedRun
from gpulab.views.timeline.tiles.cutting import BINS, TileContent, bin_shares, cut_tile
from gpulab.views.timeline.tiles.encoding import MAX_TILE_BYTES, NO_ROW, encode_tile
from gpulab.wording import clean, shorten

_MAX_NAME_LENGTH = 200
_HEAD_BYTES = 900  # size of a head without names, notes, layers and curves
_MAX_CURVE_BYTES, _CURVE_HEAD_BYTES, _POINT_BYTES = 12_000, 120, 16
_NOTE_BYTES = 6_000  # reserved for notes
_MIN_NOTE_BINS = 4  # boxes at least this many bins wide get a note
_MAX_NOTES = 300
_SHRINK_FACTOR = 0.8

Curves = Sequence[tuple[int, Curve]]


@dataclass(eq=False)
class DisplayNames:
    """Names as displayed, and their size in a tile; both are cached."""

    names: Sequence[str]
    _texts: dict[int, str] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)

    def text(self, name: int) -> str:
        """Return a name as displayed."""
        if name not in self._texts:
            text = shorten(clean(self.names[name], _MAX_NAME_LENGTH), _MAX_NAME_LENGTH)
            self._texts[name], self._bytes[name] = text, encoded_bytes(text)
        return self._texts[name]

    def sizes(self, names: Ints) -> Ints:
        """Return the size of each name in a tile, in bytes."""
        for name in names.tolist():
            self.text(name)
        return np.array([self._bytes[name] for name in names.tolist()], np.int64)


def encoded_bytes(text: str) -> int:
    """Return the size of a text in the head of a tile in bytes, with the comma after it."""
    return len(json.dumps(text, ensure_ascii=False).encode()) + 1


def build_tile(
    sides: Sequence[PlacedRun],
    rows: Sequence[Boxes | None],
    curves: Curves,
    texts: DisplayNames,
    level: int,
    index: int,
    window: tuple[int, int],
) -> bytes:
    """Encode a tile for a time window, in at most `MOST_BYTES`."""
    start, end = window
    samples = list(curve_samples(curves, start, end))
    curve_bytes = sum(_CURVE_HEAD_BYTES + _POINT_BYTES * len(each[1]) for each in samples)
    box_bytes = MAX_TILE_BYTES - _HEAD_BYTES - curve_bytes - _NOTE_BYTES
    while True:
        content = cut_tile(rows, start, end, box_bytes, texts.sizes)
        bins = bin_shares(content.layers, content.edges_ns)
        head: dict[str, Any] = {"level": level, "index": index, "start_ns": start, "end_ns": end}
        head |= {"bins": len(content.edges_ns) - 1, "binned": bool(bins)}
        columns, head_texts = box_columns(sides, rows, texts, content)
        size = len(encode_tile({**head, **head_texts, "notes": [""]}, columns, bins, samples))
        head_texts["notes"], columns["note"] = _notes(sides, rows, content, MAX_TILE_BYTES - size - 64)
        data = encode_tile({**head, **head_texts}, columns, bins, samples)
        if len(data) <= MAX_TILE_BYTES or not len(content.row):
            return data
        box_bytes = int(box_bytes * _SHRINK_FACTOR)


def curve_samples(curves: Curves, start: int, end: int) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """Yield for each curve its row, and times, lowest and highest values in a window."""
    if not curves:
        return
    max_points = max(16, min(256, (_MAX_CURVE_BYTES // len(curves) - _CURVE_HEAD_BYTES) // _POINT_BYTES))
    for row, curve in curves:
        at, low, high = sample_curve(curve, start, end, max_points)
        if len(at):
            yield row, at, low, high


def box_columns(
    sides: Sequence[PlacedRun], rows: Sequence[Boxes | None], texts: DisplayNames, content: TileContent
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of the single boxes, and the names to which they refer."""
    start, end, key, name, id = (np.empty(len(content.row), np.int64) for _ in range(5))
    for row in np.unique(content.row).tolist():
        mask = content.row == row
        boxes, positions = rows[row], content.position[mask]
        assert boxes is not None
        start[mask], end[mask], key[mask] = boxes.start_ns[positions], boxes.end_ns[positions], boxes.key[positions]
        name[mask], id[mask] = boxes.name[positions], boxes.id[positions]
    codes, name_index = np.unique(name, return_inverse=True)
    partner_at, partner_row = _partners(sides, content, id)
    columns = {
        "start": start,
        "dur": end - start,
        "row": content.row,
        "key": key,
        "name": name_index + 1,
        "note": np.zeros(len(start), np.int64),
        "id": id,
        "partner_at": partner_at,
        "partner_row": partner_row,
    }
    return columns, {"names": ["", *map(texts.text, codes.tolist())]}


def _partners(sides: Sequence[PlacedRun], content: TileContent, id: Ints) -> tuple[Floats, Ints]:
    """Return start and row of the other end of each box's launch; NaN and `NO_ROW` without one."""
    at, row = np.full(len(id), np.nan), np.full(len(id), NO_ROW, np.int64)
    for side in sides:
        for placed in side.placed_groups:
            if not placed.group.is_events:
                continue
            last = placed.first + placed.group.row_count
            boxes = np.flatnonzero((content.row >= placed.first) & (content.row < last))
            partner = side.partner[id[boxes]]
            has_row = (partner >= 0) & (side.row_of[partner] >= 0)
            boxes, partner = boxes[has_row], partner[has_row]
            at[boxes] = side.run.event_rows["start_ns"][partner] + side.shift_ns
            row[boxes] = side.row_of[partner]
    return at, row


def _notes(
    sides: Sequence[PlacedRun], rows: Sequence[Boxes | None], content: TileContent, free_bytes: int
) -> tuple[list[str], Ints]:
    """Return the notes of the widest boxes that fit, and for each box the index of its note (0: none)."""
    numbers, note_index = {"": 0}, np.zeros(len(content.row), np.int64)
    min_width = _MIN_NOTE_BINS * (content.end_ns - content.start_ns) / BINS
    positions = zip(content.row, content.position, strict=True)
    widths = np.array([_width(rows, row, position) for row, position in positions], np.int64)
    wide = np.flatnonzero(widths >= min_width)
    for box in wide[np.argsort(-widths[wide], kind="stable")][:_MAX_NOTES].tolist():
        text = box_note(sides, rows, int(content.row[box]), int(content.position[box]))
        if text not in numbers:
            text_bytes = encoded_bytes(text)
            if text_bytes > free_bytes:
                break
            free_bytes -= text_bytes
            numbers[text] = len(numbers)
        note_index[box] = numbers[text]
    return list(numbers), note_index


def _width(rows: Sequence[Boxes | None], row: int, position: int) -> int:
    boxes = rows[row]
    assert boxes is not None
    return int(boxes.end_ns[position] - boxes.start_ns[position])


def box_note(sides: Sequence[PlacedRun], rows: Sequence[Boxes | None], row: int, position: int) -> str:
    """Return the card text of a box after its name and duration."""
    boxes = rows[row]
    assert boxes is not None
    side = next(each for each in sides if each.group_of(row) is not None)
    placed = side.group_of(row)
    assert placed is not None
    id = int(boxes.id[position])
    if placed.group.is_events:
        return box_details.event_note(side, id)
    if placed.group.id == "steps":
        return box_details.step_note(side, id)
    return box_details.part_note(side, int(boxes.key[position])) if placed.group.id == "ledger" else ""
