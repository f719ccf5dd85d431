"""Means over the last seconds or minutes, updated with each value."""

from __future__ import annotations

import math
from collections import deque

_MIN_COVERED = 0.8  # share of a part that must be measured; with less, there is no mean
_PARTS = 5
_TOLERANCE = 0.5  # of a period: readings are not exactly a period apart
_SHORTEST_PARTED_S = 50.0  # a shorter window is one part
_PERIODS_PER_PART = 1.5  # at least, so that every part has a reading


class SlidingWindow:
    """The values of the last `seconds` in up to five parts, each with its mean; unknown values do not count.

    "Below 30 % for 5 min" means that the mean of every part is below: one long dip does not count for all of the time,
    and a short peak does not start it anew. With 0 seconds, the window is the last value.
    """

    def __init__(self, seconds: float, period_s: float = 1.0) -> None:
        most = max(1, int(seconds / (_PERIODS_PER_PART * period_s)))
        count = min(_PARTS, most) if seconds >= _SHORTEST_PARTED_S else 1
        self._part_s = max(seconds / count, period_s / 2)
        self._expected = max(1.0, self._part_s / period_s)
        self._fill_s = seconds - period_s * (1 + _TOLERANCE)  # between its first and its last value, once it is full
        self._parts = [_Part() for _ in range(count)]
        self._first_s, self._last_s = math.inf, -math.inf

    def add(self, at_s: float, value: float) -> None:
        """Add a value. A time that is not after the previous one, because the clock was set back, starts anew."""
        if at_s <= self._last_s:
            self.clear()
        self._first_s, self._last_s = min(self._first_s, at_s), at_s
        self._parts[0].append((at_s, value))
        for number, part in enumerate(self._parts, 1):
            for old in part.pop_until(at_s - number * self._part_s):
                if number < len(self._parts):
                    self._parts[number].append(old)

    def clear(self) -> None:
        """Forget all values."""
        self._first_s, self._last_s = math.inf, -math.inf
        for part in self._parts:
            part.clear()

    def means(self) -> tuple[float, ...]:
        """Return the mean of each part, the latest first; NaN where too little was measured, or before it is full."""
        if self._last_s - self._first_s < self._fill_s:
            return (math.nan,) * len(self._parts)
        # Of few readings, one may lie on the other side of an edge.
        needed = max(1.0, min(_MIN_COVERED * self._expected, self._expected - 1))
        return tuple(part.total / part.measured if part.measured >= needed else math.nan for part in self._parts)

    def mean(self) -> float:
        """Return the mean of the window; NaN if a part has none."""
        means = self.means()
        return sum(means) / len(means)


class _Part:
    """Values of one part, oldest first, with their sum."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()
        self.total, self.measured = 0.0, 0

    def append(self, item: tuple[float, float]) -> None:
        self._values.append(item)
        self._count(item[1], 1)

    def pop_until(self, at_s: float) -> list[tuple[float, float]]:
        """Remove and return the values that are not after this time."""
        removed = []
        while self._values and self._values[0][0] <= at_s:
            item = self._values.popleft()
            self._count(item[1], -1)
            removed.append(item)
        return removed

    def clear(self) -> None:
        self._values.clear()
        self.total, self.measured = 0.0, 0

    def _count(self, value: float, times: int) -> None:
        if not math.isnan(value):
            self.total += times * value
            self.measured += times
            if not self.measured:
                self.total = 0.0  # no rounding error stays
