"""One tile as bytes: the boxes of a cut with their names, links and notes, its bins, and the curves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.intervals import Ints
from gpulab.views.timeline.queries import cards
from gpulab.views.timeline.scene.curves import pieces
from gpulab.views.timeline.scene.groups import Boxes, Curve, Floats
from gpulab.views.timeline.scene.placed_run import Side
from gpulab.views.timeline.tiles.cutting import BINS, Cut, cut, shares
from gpulab.views.timeline.tiles.encoding import MOST_BYTES, NO_ROW, packed
from gpulab.wording import clean, shorten

NAME_LETTERS = 200
HEAD_BYTES = 900  # of a head without names, notes, layers and curves
CURVE_BYTES_MOST, CURVE_HEAD_BYTES, POINT_BYTES = 12_000, 120, 16
NOTE_BYTES = 6_000  # kept free for notes where there are boxes to write them about
NOTE_BINS = 4  # a box so many bins wide has room for a card
MOST_NOTES = 300
_FEWER = 0.8

Curves = Sequence[tuple[int, Curve]]


@dataclass(eq=False)
class NameTexts:
    """Names as they are shown, and what they take in a tile; each is cleaned once."""

    names: Sequence[str]
    _texts: dict[int, str] = field(default_factory=dict)
    _bytes: dict[int, int] = field(default_factory=dict)

    def text(self, name: int) -> str:
        """A name as it is shown."""
        if name not in self._texts:
            text = shorten(clean(self.names[name], NAME_LETTERS), NAME_LETTERS)
            self._texts[name], self._bytes[name] = text, written(text)
        return self._texts[name]

    def bytes(self, names: Ints) -> Ints:
        """What each of these takes in a tile."""
        for name in names.tolist():
            self.text(name)
        return np.array([self._bytes[name] for name in names.tolist()], np.int64)


def written(text: str) -> int:
    """Bytes of a text in the head of a tile, with the comma after it."""
    return len(json.dumps(text, ensure_ascii=False).encode()) + 1


def tile(
    sides: Sequence[Side],
    rows: Sequence[Boxes | None],
    curves: Curves,
    texts: NameTexts,
    level: int,
    index: int,
    window: tuple[int, int],
) -> bytes:
    """A stretch of time as bytes."""
    start, end = window
    drawn = list(curves_in(curves, start, end))
    room = MOST_BYTES - HEAD_BYTES - sum(CURVE_HEAD_BYTES + POINT_BYTES * len(each[1]) for each in drawn)
    boxes_room = room - NOTE_BYTES
    while True:
        made = cut(rows, start, end, boxes_room, texts.bytes)
        bins = shares(made.layers, made.edges_ns)
        head: dict[str, Any] = {"level": level, "index": index, "start_ns": start, "end_ns": end}
        head |= {"bins": len(made.edges_ns) - 1, "binned": bool(bins)}
        columns, told = columns_of(sides, rows, texts, made)
        taken = len(packed({**head, **told, "notes": [""]}, columns, bins, drawn))
        told["notes"], columns["note"] = _notes(sides, rows, made, MOST_BYTES - taken - 64)
        found = packed({**head, **told}, columns, bins, drawn)
        if len(found) <= MOST_BYTES or not len(made.row):
            return found
        boxes_room = int(boxes_room * _FEWER)


def curves_in(curves: Curves, start: int, end: int) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """Of each curve, its row, and its moments, lowest and highest values in a stretch of time."""
    if not curves:
        return
    most = max(16, min(256, (CURVE_BYTES_MOST // len(curves) - CURVE_HEAD_BYTES) // POINT_BYTES))
    for row, curve in curves:
        at, low, high = pieces(curve, start, end, most)
        if len(at):
            yield row, at, low, high


def columns_of(
    sides: Sequence[Side], rows: Sequence[Boxes | None], texts: NameTexts, made: Cut
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of the boxes, and the names they point to."""
    start, end, key, name, id = (np.empty(len(made.row), np.int64) for _ in range(5))
    for row in np.unique(made.row).tolist():
        mine = made.row == row
        boxes, places = rows[row], made.place[mine]
        assert boxes is not None
        start[mine], end[mine], key[mine] = boxes.start_ns[places], boxes.end_ns[places], boxes.key[places]
        name[mine], id[mine] = boxes.name[places], boxes.id[places]
    each, which = np.unique(name, return_inverse=True)
    partner_at, partner_row = _partners(sides, made, id)
    columns = {
        "start": start,
        "dur": end - start,
        "row": made.row,
        "key": key,
        "name": which + 1,
        "note": np.zeros(len(start), np.int64),
        "id": id,
        "partner_at": partner_at,
        "partner_row": partner_row,
    }
    return columns, {"names": ["", *map(texts.text, each.tolist())]}


def _partners(sides: Sequence[Side], made: Cut, id: Ints) -> tuple[Floats, Ints]:
    at, row = np.full(len(id), np.nan), np.full(len(id), NO_ROW, np.int64)
    for side in sides:
        for placed in side.placed:
            if not placed.group.events:
                continue
            last = placed.first + placed.group.height
            mine = np.flatnonzero((made.row >= placed.first) & (made.row < last))
            partner = side.partner[id[mine]]
            drawn = (partner >= 0) & (side.row_of[partner] >= 0)
            mine, partner = mine[drawn], partner[drawn]
            at[mine] = side.run.event_rows["start_ns"][partner] + side.shift_ns
            row[mine] = side.row_of[partner]
    return at, row


def _notes(sides: Sequence[Side], rows: Sequence[Boxes | None], made: Cut, room: int) -> tuple[list[str], Ints]:
    """Notes of the widest boxes, as long as there is room."""
    told, which = {"": 0}, np.zeros(len(made.row), np.int64)
    least = NOTE_BINS * (made.end_ns - made.start_ns) / BINS
    widths = np.array([_width(rows, row, place) for row, place in zip(made.row, made.place, strict=True)], np.int64)
    wide = np.flatnonzero(widths >= least)
    for place in wide[np.argsort(-widths[wide], kind="stable")][:MOST_NOTES].tolist():
        text = note_of(sides, rows, int(made.row[place]), int(made.place[place]))
        if text not in told:
            taken = written(text)
            if taken > room:
                break
            room -= taken
            told[text] = len(told)
        which[place] = told[text]
    return list(told), which


def _width(rows: Sequence[Boxes | None], row: int, place: int) -> int:
    boxes = rows[row]
    assert boxes is not None
    return int(boxes.end_ns[place] - boxes.start_ns[place])


def note_of(sides: Sequence[Side], rows: Sequence[Boxes | None], row: int, place: int) -> str:
    """What the card of a box says after its name and length."""
    boxes = rows[row]
    assert boxes is not None
    side = next(each for each in sides if each.group_of(row) is not None)
    placed = side.group_of(row)
    assert placed is not None
    id = int(boxes.id[place])
    if placed.group.events:
        return cards.note(side, id)
    if placed.group.id == "steps":
        return cards.step_note(side, id)
    return cards.part_note(side, int(boxes.key[place])) if placed.group.id == "ledger" else ""
