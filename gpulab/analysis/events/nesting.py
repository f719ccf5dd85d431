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
    """Split the time that the rows cover into segments with one innermost row each, by thread and time.

    Rows of a thread nest like calls; some overlap their neighbour by a rounding error, and then the later one counts.
    """
    order, threads, starts, ends = _in_call_order(rows)
    lasting = np.flatnonzero(ends > starts)  # an instant has no segment
    order, threads, starts, ends = order[lasting], threads[lasting], starts[lasting], ends[lasting]
    parts = [Segments(*np.zeros((3, 0), np.int64))]
    for thread in np.unique(threads):
        first, last = np.searchsorted(threads, (thread, thread + 1)).tolist()
        calls = (starts[first:last], ends[first:last])
        parents = _parents(*calls)
        segments = _overlapping_segments(*calls) if parents is None else _nested_segments(*calls, parents)
        parts.append(Segments(segments.start_ns, segments.end_ns, order[first:last][segments.row]))
    return Segments(*map(np.concatenate, zip(*parts, strict=True)))


def _parents(starts: Ints, ends: Ints) -> Ints | None:
    """Return the innermost earlier call that contains each call, -1 for none; None if calls overlap otherwise."""
    number = np.arange(len(starts))
    depths = number - np.searchsorted(np.sort(ends), starts, side="right")
    parents = np.full(len(starts), -1)
    outer = np.flatnonzero(depths == 0)
    for depth in range(1, int(depths.max(initial=0)) + 1):
        inner = np.flatnonzero(depths == depth)
        parents[inner] = outer[np.searchsorted(outer, inner) - 1]
        outer = inner
    has_parent = parents >= 0
    return parents if (ends[has_parent] <= ends[parents[has_parent]]).all() else None


def _nested_segments(starts: Ints, ends: Ints, parents: Ints) -> Segments:
    """Return the segments of calls that nest: before each inner call, and after the last one."""
    inner = np.flatnonzero(parents >= 0)
    inner = inner[np.argsort(parents[inner], kind="stable")]  # by the call around them, in time
    is_first = np.diff(parents[inner], prepend=-1) != 0
    before_ns = np.where(is_first, starts[parents[inner]], np.r_[0, ends[inner]][:-1])
    after_ns = starts.copy()
    np.maximum.at(after_ns, parents[inner], ends[inner])
    start_ns, end_ns = np.r_[before_ns, after_ns], np.r_[starts[inner], ends]
    row = np.r_[parents[inner], np.arange(len(starts))]
    lasting = np.flatnonzero(start_ns < end_ns)
    lasting = lasting[np.argsort(start_ns[lasting], kind="stable")]
    return Segments(start_ns[lasting], end_ns[lasting], row[lasting])


def _overlapping_segments(starts: Ints, ends: Ints) -> Segments:
    """Return the segments of calls some of which overlap: call by call, a second for a million."""
    segments: list[tuple[int, int, int]] = []
    open_rows: list[tuple[int, int]] = []  # (row, end), outermost first
    at = int(starts[0])
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        at = _close(open_rows, segments, at, start)
        if open_rows and start > at:
            segments.append((at, start, open_rows[-1][0]))
        at = start
        while open_rows and open_rows[-1][1] < end:
            open_rows.pop()  # it does not contain this row: they overlap only by a rounding error
        open_rows.append((row, end))
    _close(open_rows, segments, at, None)
    return Segments(*np.array(segments, np.int64).reshape(-1, 3).T)


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
