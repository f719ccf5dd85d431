"""Cutting a scene into tiles: boxes wide enough to be seen are told one by one, the rest as shares of bins.

Of every row, what the boxes cover and what the bins hold is together exactly the time that the row covers: bins are
worked out from running totals over the whole row, less the boxes told one by one, so that no box can be lost between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Coverage, Ints, Spans, clip, intersect, nothing, union
from gpulab.views.timeline.scene.groups import Boxes
from gpulab.views.timeline.tiles.encoding import BOX_BYTES

BINS = 512
BIN_BYTES_MOST, BOX_BYTES_LEAST = 24_000, 10_000  # bins may have more where that leaves so much for boxes
LAYER_BYTES = 44  # what the head says of a layer
# With many rows: coarser bins, then one colour for each row, the one it has most of.
FORMS = tuple(
    (BINS // coarser, mixed)
    for coarser, mixed in ((1, False), (2, False), (4, False), (2, True), (4, True), (8, True), (16, True))
)
_ROUNDS = 6


@dataclass(frozen=True, eq=False)
class Layer:
    """Of one row and colour, how much of each bin is filled by what is not told one by one."""

    row: int
    key: int
    filled_ns: Ints


@dataclass(frozen=True, eq=False)
class Cut:
    """A stretch of time, cut: boxes told one by one (`row` and the place in it, in order), and layers of bins."""

    start_ns: int
    end_ns: int
    edges_ns: Ints
    row: Ints
    place: Ints
    layers: tuple[Layer, ...]


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Boxes at least a bin wide, the widest first."""

    row: Ints
    place: Ints
    key: Ints
    inside_ns: Ints  # how much of it lies in the tile
    cost: Ints  # bytes of it and of all before it

    def first(self, count: int) -> _Candidates:
        """The widest."""
        return _Candidates(*(each[:count] for each in (self.row, self.place, self.key, self.inside_ns, self.cost)))


NameBytes = Callable[[Ints], Ints]


def cut(rows: Sequence[Boxes | None], start_ns: int, end_ns: int, room_bytes: int, name_bytes: NameBytes) -> Cut:
    """Cut a stretch of time so that boxes, names and bins take at most so many bytes. Rows that are curves are None."""
    found = _candidates(rows, start_ns, end_ns, name_bytes)
    covered = _covered(rows, start_ns, end_ns)
    most = max(BIN_BYTES_MOST, room_bytes - BOX_BYTES_LEAST)
    kept, reserved = found.first(0), -1
    for _ in range(_ROUNDS):
        needed = _left(rows, covered, found if reserved < 0 else kept)
        bins_bytes = _bins_bytes(needed, most)
        if bins_bytes <= reserved:
            break
        reserved = bins_bytes
        kept = found.first(int(np.searchsorted(found.cost, room_bytes - reserved, side="right")))
    else:
        kept = found.first(
            int(np.searchsorted(found.cost, room_bytes - _bins_bytes(list(covered), most), side="right"))
        )
    needed = _left(rows, covered, kept)
    bins, mixed = _form(needed, most)
    edges = start_ns + (np.arange(bins + 1) * (end_ns - start_ns)) // bins
    layers = [_layer(rows, row, key, kept, edges) for row, key in needed]
    layers = [layer for layer in layers if layer.filled_ns.any()]
    order = np.lexsort((kept.place, kept.row))
    return Cut(
        start_ns, end_ns, edges, kept.row[order], kept.place[order], tuple(_one_colour(layers) if mixed else layers)
    )


def _candidates(rows: Sequence[Boxes | None], start_ns: int, end_ns: int, name_bytes: NameBytes) -> _Candidates:
    bin_ns = max(1.0, (end_ns - start_ns) / BINS)
    parts: list[tuple[Ints, ...]] = []
    for number, row in enumerate(rows):
        if row is None or not len(row):
            continue
        places = row.wide(start_ns, end_ns, bin_ns)
        if len(places):
            starts, ends = row.start_ns[places], row.end_ns[places]
            inside = np.minimum(ends, end_ns) - np.maximum(starts, start_ns)
            keys, names = row.key[places].astype(np.int64), row.name[places].astype(np.int64)
            parts.append((np.full(len(places), number), places, keys, inside, ends - starts, names))
    if not parts:
        none = np.empty(0, np.int64)
        return _Candidates(none, none, none, none, none)
    row_, place, key, inside, dur, name = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((place, row_, -dur))
    name = name[order]
    each, first = np.unique(name, return_index=True)
    cost = np.full(len(order), BOX_BYTES)
    cost[first] += name_bytes(each)
    return _Candidates(row_[order], place[order], key[order], inside[order], np.cumsum(cost))


def _covered(rows: Sequence[Boxes | None], start_ns: int, end_ns: int) -> dict[tuple[int, int], int]:
    """How much of the stretch each row and key covers; those that cover nothing of it are left out."""
    found = {}
    window = np.array([start_ns, end_ns])
    for number, row in enumerate(rows):
        if row is None or not len(row):
            continue
        for key, coverage in row.layers:
            before, until = coverage.until(window).tolist()
            if until > before:
                found[number, key] = until - before
    return found


def _left(
    rows: Sequence[Boxes | None], covered: dict[tuple[int, int], int], kept: _Candidates
) -> list[tuple[int, int]]:
    """The layers that the boxes told one by one do not tell wholly. Where boxes overlap, that is not known yet."""
    told = np.zeros(len(rows) << 8, np.int64)
    np.add.at(told, (kept.row << 8) + kept.key, kept.inside_ns)
    left = []
    for (row, key), covered_ns in covered.items():
        boxes = rows[row]
        assert boxes is not None
        if boxes.tangled or told[(row << 8) + key] < covered_ns:
            left.append((row, key))
    return left


def _form(layers: Sequence[tuple[int, int]], most: int) -> tuple[int, bool]:
    """How fine the bins can be, and whether each row must do with one colour."""
    one_each = len({row for row, _ in layers})
    for bins, mixed in FORMS:
        if (one_each if mixed else len(layers)) * (bins + LAYER_BYTES) <= most:
            break
    return bins, mixed


def _bins_bytes(layers: Sequence[tuple[int, int]], most: int) -> int:
    bins, mixed = _form(layers, most)
    return (len({row for row, _ in layers}) if mixed else len(layers)) * (bins + LAYER_BYTES)


def _layer(rows: Sequence[Boxes | None], row: int, key: int, kept: _Candidates, edges: Ints) -> Layer:
    boxes = rows[row]
    assert boxes is not None
    coverage = dict(boxes.layers)[key]
    filled = coverage.within(edges[:-1], edges[1:])
    places = kept.place[kept.row == row]
    if boxes.tangled:
        told = union(boxes.start_ns[places], boxes.end_ns[places]) if len(places) else nothing()
        mine = intersect(_near(coverage.spans, int(edges[0]), int(edges[-1])), told)
    else:
        places = np.sort(places[boxes.key[places] == key])
        mine = Spans(boxes.start_ns[places], boxes.end_ns[places])
    if len(mine.start_ns):
        filled = filled - Coverage.of(mine).within(edges[:-1], edges[1:])
    return Layer(row, key, filled)


def _near(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    first = int(np.searchsorted(spans.end_ns, start_ns, side="right"))
    last = int(np.searchsorted(spans.start_ns, end_ns, side="left"))
    return clip(Spans(spans.start_ns[first:last], spans.end_ns[first:last]), start_ns, end_ns)


def _one_colour(layers: Sequence[Layer]) -> list[Layer]:
    """The layers of each row as one, in the colour of the largest."""
    found: dict[int, list[Layer]] = {}
    for layer in layers:
        found.setdefault(layer.row, []).append(layer)
    return [
        Layer(row, max(each, key=lambda layer: int(layer.filled_ns.sum())).key, np.sum([e.filled_ns for e in each], 0))
        for row, each in found.items()
    ]


def shares(layers: Sequence[Layer], edges: Ints) -> list[tuple[int, int, NDArray[np.uint8]]]:
    """Row, key and share of each bin, 0 to 255. Work is at least 1; a bin with any idle has at most 254 in its row."""
    widths = np.maximum(np.diff(edges), 1)
    told = []
    by_row: dict[int, list[Layer]] = {}
    for layer in layers:
        by_row.setdefault(layer.row, []).append(layer)
    for row, each in by_row.items():
        filled = np.stack([layer.filled_ns for layer in each])
        value = np.where(filled > 0, np.maximum(1, filled * 255 // widths), 0)
        total = filled.sum(0)
        aim = np.where(total >= widths, 255, np.clip(np.rint(total * 255 / widths), 1, 254)).astype(np.int64)
        largest = filled.argmax(0)[None]
        # What rounding left over goes to the largest, which can best bear it.
        most = np.take_along_axis(value, largest, 0) + aim - value.sum(0)
        lowest = np.where(total > 0, 1, 0)
        np.put_along_axis(value, largest, np.where(total > 0, np.maximum(most, lowest), 0), 0)
        told += [(row, layer.key, values.astype(np.uint8)) for layer, values in zip(each, value, strict=True)]
    return told
