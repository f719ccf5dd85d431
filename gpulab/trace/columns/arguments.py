"""Values of arguments, of whatever type they were written in -> typed columns; -1 or NaN where they tell nothing."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.trace.columns.times import whole

Values = Sequence[Any]


def _numbers(values: Values) -> NDArray[Any]:
    """The values as an array of whatever fits all; missing ones become -1."""
    try:
        return np.array([-1 if value is None else value for value in values] if None in values else values)
    except (ValueError, TypeError, OverflowError):
        return np.empty(0)


def wholes(values: Values) -> Ints:
    """Counts and identifiers; the 32-bit -1 is none."""
    array = _numbers(values)
    if array.dtype == np.int64 and array.shape == (len(values),) and (array < 2**32 - 1).all():
        return np.asarray(np.maximum(array, -1), np.int64)
    return np.fromiter(map(whole, values), np.int64, len(values))


def addresses(values: Values) -> Ints:
    """Addresses and large counts: the 32-bit -1 is one like others."""
    array = _numbers(values)
    if array.dtype == np.int64 and array.shape == (len(values),) and (array < 2**62).all():
        return np.asarray(np.maximum(array, -1), np.int64)
    return np.fromiter((whole(value, sentinel=-1) for value in values), np.int64, len(values))


def amounts(values: Values) -> Ints:
    """What may be negative; 0 where it is no number."""
    array = _numbers(values)
    if array.dtype == np.int64 and array.shape == (len(values),):
        return np.where(abs(array) < 2**62, array, 0)
    return np.fromiter(
        (value if type(value) is int and abs(value) < 2**62 else 0 for value in values), np.int64, len(values)
    )


def correlations(values: Values) -> Ints:
    """CUPTI counts from 1; it writes 0 where nothing belongs together."""
    found = wholes(values)
    return np.where(found == 0, -1, found)


class _Products(dict[tuple[Any, ...], int]):
    """Three sides -> their product: a run has few different ones."""

    def __missing__(self, sides: tuple[Any, ...]) -> int:
        product = _product(sides)
        if product >= 0:
            self[sides] = product
        return product


def products(values: Values) -> Ints:
    """Blocks of a grid, or threads of a block, from three sides each."""
    known = _Products()
    try:
        return np.fromiter(map(known.__getitem__, map(tuple, values)), np.int64, len(values))
    except TypeError:  # no list, or a list of lists
        return np.fromiter(map(_product, values), np.int64, len(values))


def _product(sides: Any) -> int:
    if not isinstance(sides, (list, tuple)) or not 0 < len(sides) <= 3:
        return -1
    total = 1
    for side in sides:
        if type(side) is not int or not 0 < side < 2**32:
            return -1
        total *= side
    return total if total < 2**62 else -1


def occupancies(values: Values) -> NDArray[np.float64]:
    """From per cent; Kineto writes a negative number, or a word, where it could not tell."""
    array = _numbers(values)
    if array.dtype.kind not in "if" or array.shape != (len(values),):
        return np.fromiter(map(_occupancy, values), np.float64, len(values)) / 100
    return np.asarray(np.where((array >= 0) & (array <= 100), array / 100, np.nan))


def _occupancy(percent: Any) -> float:
    good = isinstance(percent, (int, float, Decimal)) and not isinstance(percent, bool) and 0 <= percent <= 100
    return float(percent) if good else float("nan")


def fitting(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values in a column's dtype; what is too large for it is not an index of anything."""
    if values.dtype.kind == "i":
        values = np.where(values <= np.iinfo(dtype).max, values, -1)
    return values.astype(dtype)
