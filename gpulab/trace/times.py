"""Microseconds as JSON has them -> whole nanoseconds, exactly.

A float64 holds µs to the ns only below 2**43 (a hundred days). Traces of early 2024 count from 1970, with decimals:
they need the text. Half a nanosecond rounds to even; Kineto writes three decimals, so this never happens in practice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints

MISSING = np.int64(np.iinfo(np.int64).min)
_EXACT_BELOW_US = float(2**43)
_LARGEST_NS = 2**62
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN, traps=[])


def by_float(values: Sequence[Any]) -> Ints | None:
    """All values at once; NaN becomes MISSING. None where float64 is not exact enough, or they are not all numbers."""
    try:
        array = np.array(values)
    except (ValueError, TypeError, OverflowError):
        return None
    if array.ndim != 1 or not len(array):
        return np.empty(0, np.int64) if not len(array) else None
    if array.dtype == np.int64:
        nanoseconds: Ints = array * 1000  # where this overflows it is not used
        most = _LARGEST_NS // 1000
        return nanoseconds if -most < array.min() and array.max() < most else None
    if array.dtype != np.float64:
        return None
    missing: NDArray[np.bool_] = np.isnan(array)
    array[missing] = 0.0
    if not (abs(array) < _EXACT_BELOW_US).all():
        return None
    whole = np.floor(array)
    result: Ints = whole.astype(np.int64) * 1000 + np.rint((array - whole) * 1000).astype(np.int64)
    result[missing] = MISSING
    return result


def by_text(values: Sequence[Any]) -> Ints:
    """One by one, from Decimals or whatever else was found; what is no usable time becomes MISSING."""
    return np.fromiter(map(_nanoseconds, values), np.int64, len(values))


def _nanoseconds(value: Any) -> int:
    if isinstance(value, (str, float)) and not isinstance(value, bool):
        try:
            value = Decimal(value.strip() if isinstance(value, str) else repr(value))
        except ArithmeticError:
            return int(MISSING)
    if isinstance(value, Decimal):
        # A huge exponent would become an integer of as many digits.
        if not value.is_finite() or value.adjusted() > 18:
            return int(MISSING)
        result = int(_CONTEXT.to_integral_value(_CONTEXT.multiply(value, 1000)))
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value * 1000
    else:
        return int(MISSING)
    return result if abs(result) < _LARGEST_NS else int(MISSING)


def whole(value: Any) -> int:
    """A count or an identifier, written as a number or as text; -1 where it is neither, or the 32-bit -1."""
    number = -1
    if isinstance(value, str) and len(value) < 20:
        with contextlib.suppress(ValueError):
            number = int(value)
    elif isinstance(value, (float, Decimal)):
        near = float(value)
        number = int(near) if near.is_integer() and abs(near) < 2**53 else -1
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    return number if 0 <= number < 2**62 and number != 2**32 - 1 else -1
