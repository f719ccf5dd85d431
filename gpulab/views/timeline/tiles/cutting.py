"""Cuts a scene into tiles: boxes that are wide enough to be visible are stored singly, the others as shares of bins.

In every row, boxes and bins together cover exactly the time that the row covers. Bins are computed from running totals
over the whole row minus the single boxes, so no box can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Coverage, Ints, Spans, clip, intersect, no_spans, union
from gpulab.views.timeline.scene.elements import Boxes
from gpulab.views.timeline.tiles.encoding import BOX_BYTES

BINS = 512
_MAX_BIN_BYTES, _MIN_BOX_BYTES = 24_000, 10_000  # bins may take more if that leaves this much for boxes
_LAYER_BYTES = 44  # size of a layer in the head
# Number of bins, and whether each row has one colour only. With many rows: coarser bins, then the main colour of a row.
_BIN_FORMATS = tuple(
    (BINS // factor, one_colour)
    for factor, one_colour in ((1, False), (2, False), (4, False), (2, True), (4, True), (8, True), (16, True))
)
_ROUNDS = 6


@dataclass(frozen=True, eq=False)
class BinLayer:
    """For one row and colour, the time in each bin that is filled by boxes which are not stored singly."""

    row: int
    key: int
    filled_ns: Ints


@dataclass(frozen=True, eq=False)
class TileContent:
    """The content of a tile: single boxes (`row` and position in it, sorted), and layers of bins."""

    start_ns: int
    end_ns: int
    edges_ns: Ints
    row: Ints
    position: Ints
    layers: tuple[BinLayer, ...]


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Boxes at least a bin wide, the widest first."""

    row: Ints
    position: Ints
    key: Ints
    inside_ns: Ints  # time within the tile
    cost: Ints  # cumulative bytes

    def first(self, count: int) -> _Candidates:
        """Return the `count` widest."""
        return _Candidates(*(each[:count] for each in (self.row, self.position, self.key, self.inside_ns, self.cost)))


NameBytes = Callable[[Ints], Ints]


def cut_tile(
    rows: Sequence[Boxes | None], start_ns: int, end_ns: int, max_bytes: int, name_bytes: NameBytes
) -> TileContent:
    """Cut a time window so that boxes, names and bins take at most `max_bytes`. Rows that are curves are None."""
    candidates = _candidates(rows, start_ns, end_ns, name_bytes)
    covered_ns = _covered(rows, start_ns, end_ns)
    max_bin_bytes = max(_MAX_BIN_BYTES, max_bytes - _MIN_BOX_BYTES)
    single, reserved = candidates.first(0), -1
    for _ in range(_ROUNDS):
        binned = _binned_layers(rows, covered_ns, candidates if reserved < 0 else single)
        bins_bytes = _bins_bytes(binned, max_bin_bytes)
        if bins_bytes <= reserved:
            break
        reserved = bins_bytes
        single = candidates.first(int(np.searchsorted(candidates.cost, max_bytes - reserved, side="right")))
    else:
        reserved = _bins_bytes(list(covered_ns), max_bin_bytes)
        single = candidates.first(int(np.searchsorted(candidates.cost, max_bytes - reserved, side="right")))
    binned = _binned_layers(rows, covered_ns, single)
    bins, one_colour = _bin_format(binned, max_bin_bytes)
    edges = start_ns + (np.arange(bins + 1) * (end_ns - start_ns)) // bins
    layers = [_layer(rows, row, key, single, edges) for row, key in binned]
    layers = [layer for layer in layers if layer.filled_ns.any()]
    order = np.lexsort((single.position, single.row))
    row, position = single.row[order], single.position[order]
    return TileContent(start_ns, end_ns, edges, row, position, tuple(_merge_colours(layers) if one_colour else layers))


def _candidates(rows: Sequence[Boxes | None], start_ns: int, end_ns: int, name_bytes: NameBytes) -> _Candidates:
    bin_ns = max(1.0, (end_ns - start_ns) / BINS)
    parts: list[tuple[Ints, ...]] = []
    for number, row in enumerate(rows):
        if row is None or not len(row):
            continue
        positions = row.at_least(start_ns, end_ns, bin_ns)
        if len(positions):
            starts, ends = row.start_ns[positions], row.end_ns[positions]
            inside = np.minimum(ends, end_ns) - np.maximum(starts, start_ns)
            keys, names = row.key[positions].astype(np.int64), row.name[positions].astype(np.int64)
            parts.append((np.full(len(positions), number), positions, keys, inside, ends - starts, names))
    if not parts:
        empty = np.empty(0, np.int64)
        return _Candidates(empty, empty, empty, empty, empty)
    row_, position, key, inside, dur, name = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.lexsort((position, row_, -dur))
    name = name[order]
    codes, first = np.unique(name, return_index=True)
    cost = np.full(len(order), BOX_BYTES)
    cost[first] += name_bytes(codes)
    return _Candidates(row_[order], position[order], key[order], inside[order], np.cumsum(cost))


def _covered(rows: Sequence[Boxes | None], start_ns: int, end_ns: int) -> dict[tuple[int, int], int]:
    """Return the time in the window that each row and colour key covers, without those that cover none of it."""
    covered_ns = {}
    window = np.array([start_ns, end_ns])
    for number, row in enumerate(rows):
        if row is None or not len(row):
            continue
        for key, coverage in row.layers:
            before, until = coverage.covered_before_ns(window).tolist()
            if until > before:
                covered_ns[number, key] = until - before
    return covered_ns


def _binned_layers(
    rows: Sequence[Boxes | None], covered_ns: dict[tuple[int, int], int], single: _Candidates
) -> list[tuple[int, int]]:
    """Return the layers (row, key) that single boxes do not cover completely; with overlaps, all that might remain."""
    single_ns = np.zeros(len(rows) << 8, np.int64)
    np.add.at(single_ns, (single.row << 8) + single.key, single.inside_ns)
    layers = []
    for (row, key), layer_ns in covered_ns.items():
        boxes = rows[row]
        assert boxes is not None
        if boxes.overlaps or single_ns[(row << 8) + key] < layer_ns:
            layers.append((row, key))
    return layers


def _bin_format(layers: Sequence[tuple[int, int]], max_bytes: int) -> tuple[int, bool]:
    """Return the number of bins, and whether each row is reduced to one colour."""
    row_count = len({row for row, _ in layers})
    for bins, one_colour in _BIN_FORMATS:
        if (row_count if one_colour else len(layers)) * (bins + _LAYER_BYTES) <= max_bytes:
            break
    return bins, one_colour


def _bins_bytes(layers: Sequence[tuple[int, int]], max_bytes: int) -> int:
    bins, one_colour = _bin_format(layers, max_bytes)
    return (len({row for row, _ in layers}) if one_colour else len(layers)) * (bins + _LAYER_BYTES)


def _layer(rows: Sequence[Boxes | None], row: int, key: int, single: _Candidates, edges: Ints) -> BinLayer:
    """Compute the bins of a row and colour key, without the time of the single boxes."""
    boxes = rows[row]
    assert boxes is not None
    coverage = dict(boxes.layers)[key]
    filled = coverage.covered_ns(edges[:-1], edges[1:])
    positions = single.position[single.row == row]
    if boxes.overlaps:
        single_spans = union(boxes.start_ns[positions], boxes.end_ns[positions]) if len(positions) else no_spans()
        single_spans = intersect(_clip(coverage.spans, int(edges[0]), int(edges[-1])), single_spans)
    else:
        positions = np.sort(positions[boxes.key[positions] == key])
        single_spans = Spans(boxes.start_ns[positions], boxes.end_ns[positions])
    if len(single_spans.start_ns):
        filled = filled - Coverage.of(single_spans).covered_ns(edges[:-1], edges[1:])
    return BinLayer(row, key, filled)


def _clip(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Clip sorted spans to a window; the binary search avoids a pass over all spans."""
    first = int(np.searchsorted(spans.end_ns, start_ns, side="right"))
    last = int(np.searchsorted(spans.start_ns, end_ns, side="left"))
    return clip(Spans(spans.start_ns[first:last], spans.end_ns[first:last]), start_ns, end_ns)


def _merge_colours(layers: Sequence[BinLayer]) -> list[BinLayer]:
    """Merge the layers of each row into one, with the colour of the largest."""
    by_row: dict[int, list[BinLayer]] = {}
    for layer in layers:
        by_row.setdefault(layer.row, []).append(layer)
    return [
        BinLayer(
            row, max(each, key=lambda layer: int(layer.filled_ns.sum())).key, np.sum([e.filled_ns for e in each], 0)
        )
        for row, each in by_row.items()
    ]


def bin_shares(layers: Sequence[BinLayer], edges: Ints) -> list[tuple[int, int, NDArray[np.uint8]]]:
    """Return row, key and the share of each bin, 0 to 255.

    A bin with any work is at least 1; a bin with any idle time is at most 254, summed over its row.
    """
    widths = np.maximum(np.diff(edges), 1)
    values_of_layers = []
    by_row: dict[int, list[BinLayer]] = {}
    for layer in layers:
        by_row.setdefault(layer.row, []).append(layer)
    for row, row_layers in by_row.items():
        filled = np.stack([layer.filled_ns for layer in row_layers])
        value = np.where(filled > 0, np.maximum(1, filled * 255 // widths), 0)
        total = filled.sum(0)
        target = np.where(total >= widths, 255, np.clip(np.rint(total * 255 / widths), 1, 254)).astype(np.int64)
        largest = filled.argmax(0)[None]
        # The rounding error is added to the largest layer, where it matters least.
        adjusted = np.take_along_axis(value, largest, 0) + target - value.sum(0)
        lowest = np.where(total > 0, 1, 0)
        np.put_along_axis(value, largest, np.where(total > 0, np.maximum(adjusted, lowest), 0), 0)
        values_of_layers += [
            (row, layer.key, values.astype(np.uint8)) for layer, values in zip(row_layers, value, strict=True)
        ]
    return values_of_layers
