"""Convert argument values of any type to typed columns; -1 or NaN for unusable values."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.trace.columns.times import parse_count

_LARGEST = {np.dtype(kind): int(np.iinfo(kind).max) for kind in (np.int8, np.int16, np.int32, np.int64)}
Values = Sequence[Any] | NDArray[Any]  # JSON values, or numbers


def _numbers(values: Values) -> NDArray[Any]:
    """The values as an array of a common type; missing ones become -1."""
    if isinstance(values, np.ndarray):
        return values
    if len(values) and type(values[0]) is int:
        with contextlib.suppress(TypeError, OverflowError):  # not all of them are integers
            return np.asarray(array("q", values))
    try:
        return np.array([-1 if value is None else value for value in values] if None in values else values)
    except (ValueError, TypeError, OverflowError):
        return np.empty(0)


def counts_and_ids(values: Values) -> Ints:
    """Counts and identifiers; the 32-bit -1 means "none"."""
    array = _numbers(values)
    if array.dtype == np.int64 and array.shape == (len(values),):
        return _usable_counts(array, sentinel=2**32 - 1)
    return np.fromiter(map(parse_count, values), np.int64, len(values))


def addresses(values: Values) -> Ints:
    """Addresses and large counts, for which the 32-bit -1 is an ordinary value."""
    array = _numbers(values)
    if array.dtype == np.int64 and array.shape == (len(values),):
        return _usable_counts(array, sentinel=-1)
    return np.fromiter((parse_count(value, sentinel=-1) for value in values), np.int64, len(values))


def _usable_counts(array: Ints, sentinel: int) -> Ints:
    """The same as `parse_count` of each number."""
    if (array < 2**32 - 1).all():
        return np.asarray(np.maximum(array, -1), np.int64)
    return np.where((array >= 0) & (array < 2**62) & (array != sentinel), array, -1)


def signed_amounts(values: Values) -> Ints:
    """Numbers that may be negative; 0 for anything else."""
    array = _numbers(values)
    if array.dtype == np.int64 and array.shape == (len(values),):
        return np.where(abs(array) < 2**62, array, 0)
    return np.fromiter(
        (value if type(value) is int and abs(value) < 2**62 else 0 for value in values), np.int64, len(values)
    )


def correlations(values: Values) -> Ints:
    """Correlation ids. CUPTI counts from 1 and writes 0 for none, which becomes -1."""
    ids = counts_and_ids(values)
    return np.where(ids == 0, -1, ids)


class _Products(dict[tuple[Any, ...], int]):
    """Cache of side lengths -> product: a run has few distinct ones."""

    def __missing__(self, sides: tuple[Any, ...]) -> int:
        product = _product(sides)
        if product >= 0:
            self[sides] = product
        return product


def products(values: Values) -> Ints:
    """Blocks of a grid, or threads of a block, from three side lengths each; an array has the products already."""
    if isinstance(values, np.ndarray):
        return values
    cache = _Products()
    try:
        return np.fromiter(map(cache.__getitem__, map(tuple, values)), np.int64, len(values))
    except TypeError:  # not a list, or a list of lists
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
    """Occupancy as a fraction; Kineto writes per cent, and a negative number or a word if it is unknown."""
    array = _numbers(values)
    if array.dtype.kind not in "if" or array.shape != (len(values),):
        return np.fromiter(map(_occupancy, values), np.float64, len(values)) / 100
    return np.asarray(np.where((array >= 0) & (array <= 100), array / 100, np.nan))


def _occupancy(percent: Any) -> float:
    is_valid = isinstance(percent, (int, float, Decimal)) and not isinstance(percent, bool) and 0 <= percent <= 100
    return float(percent) if is_valid else float("nan")


def cast_to_column(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values in a column's dtype; values that are too large cannot be indices and become -1."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind == "i":
        values = np.where(values <= _LARGEST[dtype], values, -1)
    return values.astype(dtype)
