"""Count, sum, smallest, median and largest of numbers that share a code; exact, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gpulab.intervals import Ints


@dataclass(frozen=True, eq=False)
class Groups:
    """Values grouped by code: one entry for each code that occurs, in order of the codes."""

    code: Ints
    of_row: Ints  # for each value, which group it is in
    first: Ints  # for each group, the index of its first value
    count: Ints
    total: Ints
    least: Ints
    median: Ints  # of an even number the mean of the middle two, rounded down
    most: Ints

    def sums(self, values: ArrayLike) -> Ints:
        """For each group, the exact sum of other values of the same rows."""
        total = np.zeros(len(self.code), np.int64)
        np.add.at(total, self.of_row, np.asarray(values, np.int64))
        return total


def grouped(codes: Ints, values: Ints) -> Groups:
    """Group values by their codes, which are not negative."""
    codes, values = np.asarray(codes, np.int64), np.asarray(values, np.int64)
    found = np.flatnonzero(np.bincount(codes, minlength=1))
    place = np.zeros(int(found.max(initial=0)) + 1, np.int64)
    place[found] = np.arange(len(found))
    of_row = place[codes]
    # Small integers are sorted by radix, ten times as fast as others.
    order = np.argsort(of_row.astype(np.int16) if len(found) < 2**15 else of_row, kind="stable")
    count = np.bincount(of_row, minlength=len(found))
    opens = np.cumsum(count) - count
    values = values[order]
    least, most, total = (_reduced(how, values, opens) for how in (np.minimum, np.maximum, np.add))
    median = _medians(values, opens, count, least, most, total)
    return Groups(found, of_row, order[opens], count, total, least, median, most)


def _reduced(how: np.ufunc, values: Ints, opens: Ints) -> Ints:
    return np.asarray(how.reduceat(values, opens) if len(opens) else values, np.int64)


def _medians(values: Ints, opens: Ints, count: Ints, least: Ints, most: Ints, total: Ints) -> Ints:
    """Of each group; up to three values tell it by their extremes and their sum."""
    median = np.where(count == 3, total - least - most, (least + most) // 2)
    for group in np.flatnonzero(count > 3).tolist():
        n, start = int(count[group]), int(opens[group])
        middle = np.partition(values[start : start + n], ((n - 1) // 2, n // 2))
        median[group] = (middle[(n - 1) // 2] + middle[n // 2]) // 2
    return median
