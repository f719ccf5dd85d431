"""Union, intersection, difference, gaps and coverage of spans, in whole nanoseconds.

Spans are two int64 arrays of equal length. A `Spans` is in normal form: sorted, disjoint, none empty. A `Coverage`
is made once of spans and then tells of any window how much of it they cover.
All functions are pure and vectorised; merging one million nearly sorted spans takes about 25 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]


class Spans(NamedTuple):
    """Sorted, disjoint, non-empty spans: `start_ns[i] < end_ns[i] < start_ns[i + 1]`."""

    start_ns: Ints
    end_ns: Ints

    @property
    def total_ns(self) -> int:
        """How much time the spans cover together."""
        return int((self.end_ns - self.start_ns).sum())


def union(start_ns: ArrayLike, end_ns: ArrayLike) -> Spans:
    """The time covered by at least one span; touching spans merge, spans of no length vanish."""
    start = np.asarray(start_ns, np.int64)
    end = np.asarray(end_ns, np.int64)
    real = end > start
    if not real.all():
        start, end = start[real], end[real]
    if not len(start):
        return nothing()
    if (start[1:] < start[:-1]).any():
        # Stable: traces come nearly sorted, and a stable sort of nearly sorted int64 is close to linear.
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.empty(len(start), bool)
    opens[0] = True
    np.greater(start[1:], reach[:-1], out=opens[1:])
    closes = np.append(np.flatnonzero(opens)[1:] - 1, len(start) - 1)
    return Spans(start[opens], reach[closes])


def merged(*several: Spans) -> Spans:
    """The time covered by at least one of several."""
    some = [spans for spans in several if len(spans.start_ns)]
    if len(some) < 2:
        return some[0] if some else nothing()
    return union(np.concatenate([spans.start_ns for spans in some]), np.concatenate([spans.end_ns for spans in some]))


def nothing() -> Spans:
    """No time at all."""
    return Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def gaps(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """The part of the window `start_ns .. end_ns` that no span covers."""
    inside = clip(spans, start_ns, end_ns)
    opens = np.append(np.int64(start_ns), inside.end_ns)
    closes = np.append(inside.start_ns, np.int64(end_ns))
    real = closes > opens
    return Spans(opens[real], closes[real])


def clip(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """The part of the spans inside the window."""
    start = np.maximum(spans.start_ns, start_ns)
    end = np.minimum(spans.end_ns, end_ns)
    real = end > start
    return Spans(start[real], end[real])


def intersect(one: Spans, other: Spans) -> Spans:
    """The time covered by both."""
    if not len(one.start_ns) or not len(other.start_ns):
        return nothing()
    # For each span of `one`, the spans of `other` that reach into it are a contiguous block.
    first = np.searchsorted(other.end_ns, one.start_ns, side="right")
    last = np.searchsorted(other.start_ns, one.end_ns, side="left")
    count = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(count)), count)
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    start = np.maximum(one.start_ns[mine], other.start_ns[theirs])
    end = np.minimum(one.end_ns[mine], other.end_ns[theirs])
    return Spans(start, end)


def subtract(one: Spans, other: Spans) -> Spans:
    """The time covered by `one` and not by `other`."""
    if not len(one.start_ns) or not len(other.start_ns):
        return one
    lowest, highest = int(one.start_ns[0]), int(one.end_ns[-1])
    return intersect(one, gaps(other, lowest, highest))


def longer(spans: Spans, than_ns: int) -> Spans:
    """The spans that last longer than this, in order of time."""
    picked = spans.end_ns - spans.start_ns > than_ns
    return Spans(spans.start_ns[picked], spans.end_ns[picked])


def longest(spans: Spans, count: int) -> Spans:
    """The `count` longest spans, in order of time; of equally long ones the earlier."""
    by_length = np.argsort(spans.start_ns - spans.end_ns, kind="stable")
    picked = np.sort(by_length[: max(0, count)])
    return Spans(spans.start_ns[picked], spans.end_ns[picked])


@dataclass(frozen=True, eq=False)
class Coverage:
    """Spans with their running total: ten thousand windows over a million spans are answered within a millisecond."""

    spans: Spans
    done_ns: Ints  # done_ns[i] is covered before span i begins; the last one is all

    @classmethod
    def of(cls, spans: Spans) -> Coverage:
        """Sum up once what all windows then share."""
        done = np.zeros(len(spans.start_ns) + 1, np.int64)
        np.cumsum(spans.end_ns - spans.start_ns, out=done[1:])
        return cls(spans, done)

    @property
    def total_ns(self) -> int:
        """How much time the spans cover together."""
        return int(self.done_ns[-1])

    def until(self, at_ns: ArrayLike) -> Ints:
        """For each instant, how much is covered before it: int64 ns."""
        at = np.asarray(at_ns, np.int64)
        if not len(self.spans.start_ns):
            return np.zeros(at.shape, np.int64)
        begun = np.searchsorted(self.spans.start_ns, at, side="right")
        # The last span begun may not have ended; before the first, its end is no reason to subtract anything.
        left = np.maximum(self.spans.end_ns[np.maximum(begun - 1, 0)] - at, 0)
        return np.asarray(self.done_ns[begun] - np.where(begun > 0, left, 0), np.int64)

    def within(self, start_ns: ArrayLike, end_ns: ArrayLike) -> Ints:
        """For each window, how much of it the spans cover: int64 ns. A window that ends before it starts is empty."""
        start = np.asarray(start_ns, np.int64)
        end = np.maximum(np.asarray(end_ns, np.int64), start)
        if start.ndim and len(start) > 1 and (start[1:] == end[:-1]).all():  # steps, bins: each edge is asked for once
            return np.diff(self.until(np.append(start, end[-1])))
        return self.until(end) - self.until(start)


def covered_ns(spans: Spans, start_ns: ArrayLike, end_ns: ArrayLike) -> Ints:
    """For each window, how much of it the spans cover: int64 ns, one per window.

    Who asks more than once about the same spans keeps a Coverage of them.
    """
    return Coverage.of(spans).within(start_ns, end_ns)
