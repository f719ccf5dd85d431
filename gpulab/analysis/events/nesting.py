"""Which events of a thread lie inside which: call trees without building trees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows

Mask = NDArray[np.bool_]


def outermost(rows: Rows) -> Mask:
    """The rows inside no other row of the same thread. Assumes that rows of a thread nest, as calls do."""
    order, thread, _, end = _in_call_order(rows)
    mask = np.empty(len(order), bool)
    for code in np.unique(thread):
        mine = np.flatnonzero(thread == code)
        reach = np.maximum.accumulate(end[mine])
        outer = np.ones(len(mine), bool)
        outer[1:] = end[mine][1:] > reach[:-1]
        mask[order[mine]] = outer
    return mask


class Segments(NamedTuple):
    """Stretches of time and the row that was innermost in each: `row` is an index into the rows asked about."""

    start_ns: Ints
    end_ns: Ints
    row: Ints

    def per_row_ns(self, count: int) -> Ints:
        """Each row's own time, without what it holds."""
        own = np.zeros(count, np.int64)
        np.add.at(own, self.row, self.end_ns - self.start_ns)
        return own


def innermost(rows: Rows) -> Segments:
    """For every instant that a row covers, the innermost row. Assumes that rows of a thread nest, as calls do.

    A loop rather than arrays: 100,000 operators take about 0.1 s, and only those of interior steps are asked about.
    """
    order, threads, starts, ends = (values.tolist() for values in _in_call_order(rows))
    segments: list[tuple[int, int, int]] = []
    open_rows: list[tuple[int, int]] = []  # (row, end), outermost first
    at, current = 0, None
    for row, thread, start, end in zip(order, threads, starts, ends, strict=True):
        if thread != current:
            _close(open_rows, segments, at, None)
            at, current = start, thread
        at = _close(open_rows, segments, at, start)
        if open_rows and start > at:
            segments.append((at, start, open_rows[-1][0]))
        at = start
        while open_rows and open_rows[-1][1] < end:
            open_rows.pop()  # it does not hold this row: neighbours that overlap by a rounded nanosecond
        open_rows.append((row, end))
    _close(open_rows, segments, at, None)
    columns = np.array(segments, np.int64).reshape(-1, 3).T
    return Segments(*columns)


def _close(open_rows: list[tuple[int, int]], segments: list[tuple[int, int, int]], at: int, until: int | None) -> int:
    """Close the rows that end by `until` (all if None); gives the instant up to which time is told."""
    while open_rows and (until is None or open_rows[-1][1] <= until):
        row, end = open_rows.pop()
        if end > at:
            segments.append((at, end, row))
            at = end
    return at


def _in_call_order(rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Sorted by thread, then start, the longer first."""
    start, dur, thread = rows["start_ns"], rows["dur_ns"], rows["thread"]
    order = np.lexsort((-dur, start, thread))
    return order, thread[order], start[order], (start + dur)[order]
