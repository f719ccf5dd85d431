"""Nesting of the events of a thread: outermost and innermost events, without building call trees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows

Mask = NDArray[np.bool_]


def outermost(rows: Rows) -> Mask:
    """Return a mask of the rows inside no other row of the same thread. Rows of a thread must nest, like calls."""
    order, thread, _, end = _in_call_order(rows)
    mask = np.empty(len(order), bool)
    for code in np.unique(thread):
        rows_of_thread = np.flatnonzero(thread == code)
        reach = np.maximum.accumulate(end[rows_of_thread])
        is_outermost = np.ones(len(rows_of_thread), bool)
        is_outermost[1:] = end[rows_of_thread][1:] > reach[:-1]
        mask[order[rows_of_thread]] = is_outermost
    return mask


def enclosing_ranges(ranges: Rows, threads: ArrayLike, at_ns: ArrayLike) -> Ints:
    """Return, for each time on a thread, the row of the range that contains it; -1 without one.

    Ranges of a thread must not overlap: see `outermost`.
    """
    threads, at_ns = np.asarray(threads), np.asarray(at_ns)
    enclosing = np.full(len(at_ns), -1, np.int64)
    for thread in np.unique(ranges["thread"]).tolist():
        rows = np.flatnonzero(ranges["thread"] == thread)
        rows = rows[np.argsort(ranges["start_ns"][rows], kind="stable")]
        times = np.flatnonzero(threads == thread)
        position = np.searchsorted(ranges["start_ns"][rows], at_ns[times], side="right") - 1
        times, candidates = times[position >= 0], rows[position[position >= 0]]
        inside = at_ns[times] < ranges["start_ns"][candidates] + ranges["dur_ns"][candidates]
        enclosing[times[inside]] = candidates[inside]
    return enclosing


class Segments(NamedTuple):
    """Time segments and the innermost row in each: `row` is an index into the given rows."""

    start_ns: Ints
    end_ns: Ints
    row: Ints

    def per_row_ns(self, count: int) -> Ints:
        """Return the self time of each row, without the rows nested in it."""
        self_ns = np.zeros(count, np.int64)
        np.add.at(self_ns, self.row, self.end_ns - self.start_ns)
        return self_ns


def innermost(rows: Rows) -> Segments:
    """Split the time that the rows cover into segments with one innermost row each. Rows of a thread must nest.

    A Python loop: 100,000 operators take about 0.1 s, and callers pass only those of interior steps.
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
            open_rows.pop()  # it does not contain this row: they overlap only by a rounding error
        open_rows.append((row, end))
    _close(open_rows, segments, at, None)
    columns = np.array(segments, np.int64).reshape(-1, 3).T
    return Segments(*columns)


def _close(open_rows: list[tuple[int, int]], segments: list[tuple[int, int, int]], at: int, until: int | None) -> int:
    """Close the rows that end by `until` (all if None). Return the time up to which segments exist."""
    while open_rows and (until is None or open_rows[-1][1] <= until):
        row, end = open_rows.pop()
        if end > at:
            segments.append((at, end, row))
            at = end
    return at


def _in_call_order(rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return order, thread, start and end, sorted by thread, then start, longer rows first."""
    start, dur, thread = rows["start_ns"], rows["dur_ns"], rows["thread"]
    order = np.lexsort((-dur, start, thread))
    return order, thread[order], start[order], (start + dur)[order]
