"""Group integers by code: exact count, sum, minimum, median and maximum of each group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gpulab.intervals import Ints


@dataclass(frozen=True, eq=False)
class Groups:
    """Values grouped by code: one entry for each code that occurs, in order of the codes."""

    code: Ints
    of_row: Ints  # for each value, the index of its group
    first: Ints  # for each group, the index of its first value
    count: Ints
    total: Ints
    minimum: Ints
    median: Ints  # for an even count, the mean of the middle two, rounded down
    maximum: Ints

    def sums(self, values: ArrayLike) -> Ints:
        """Return, for each group, the exact sum of other values of the same rows."""
        total = np.zeros(len(self.code), np.int64)
        np.add.at(total, self.of_row, np.asarray(values, np.int64))
        return total


def group_by_code(codes: Ints, values: Ints) -> Groups:
    """Group values by their non-negative codes."""
    codes, values = np.asarray(codes, np.int64), np.asarray(values, np.int64)
    present_codes = np.flatnonzero(np.bincount(codes, minlength=1))
    group_of_code = np.zeros(int(present_codes.max(initial=0)) + 1, np.int64)
    group_of_code[present_codes] = np.arange(len(present_codes))
    of_row = group_of_code[codes]
    # int16 is sorted by radix sort, ten times as fast.
    order = np.argsort(of_row.astype(np.int16) if len(present_codes) < 2**15 else of_row, kind="stable")
    count = np.bincount(of_row, minlength=len(present_codes))
    starts = np.cumsum(count) - count
    values = values[order]
    least, most, total = (_reduced(function, values, starts) for function in (np.minimum, np.maximum, np.add))
    median = _medians(values, starts, count, least, most, total)
    return Groups(present_codes, of_row, order[starts], count, total, least, median, most)


def _reduced(function: np.ufunc, values: Ints, starts: Ints) -> Ints:
    return np.asarray(function.reduceat(values, starts) if len(starts) else values, np.int64)


def _medians(values: Ints, starts: Ints, count: Ints, smallest: Ints, largest: Ints, total: Ints) -> Ints:
    """Return the median of each group; for up to three values it follows from minimum, maximum and sum."""
    median = np.where(count == 3, total - smallest - largest, (smallest + largest) // 2)
    for group in np.flatnonzero(count > 3).tolist():
        n, start = int(count[group]), int(starts[group])
        middle = np.partition(values[start : start + n], ((n - 1) // 2, n // 2))
        median[group] = (middle[(n - 1) // 2] + middle[n // 2]) // 2
    return median
