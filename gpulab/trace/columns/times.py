"""Convert microseconds in JSON to integer nanoseconds, exactly.

A float64 holds us exactly to the ns only below 2**43 (a hundred days). Traces of early 2024 count from 1970, with
decimals, and need the original text. Half a nanosecond rounds to even; as Kineto writes three decimals, there is none.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints

UNPADDED = "nanoseconds without leading zeros"
MISSING = np.int64(np.iinfo(np.int64).min)
EXACT_BELOW_US = float(2**43)
_LARGEST_NS = 2**62
MIN_FRACTIONS = 200  # this many fractions without a leading zero are not a coincidence
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN, traps=[])


def nanoseconds_from_numbers(values: Sequence[float]) -> Ints | None:
    """Convert ints and floats; NaN becomes MISSING. None if float64 may not be exact to the ns."""
    with contextlib.suppress(TypeError, OverflowError):  # a float among them, or too large
        integers = np.asarray(array("q", values))
        return integers * 1000 if (abs(integers) < _LARGEST_NS // 1000).all() else None
    try:
        numbers = np.fromiter(values, np.float64, len(values))
    except OverflowError:
        return None
    missing: NDArray[np.bool_] = np.isnan(numbers)
    numbers[missing] = 0.0
    if not (abs(numbers) < EXACT_BELOW_US).all():
        return None
    floor = np.floor(numbers)
    result: Ints = floor.astype(np.int64) * 1000 + np.rint((numbers - floor) * 1000).astype(np.int64)
    result[missing] = MISSING
    return result


def nanoseconds_from_text(values: Sequence[Any]) -> Ints:
    """Convert one by one, from Decimals or any other type; unusable values become MISSING."""
    return np.fromiter(map(_nanoseconds, values), np.int64, len(values))


def are_unpadded(values: Sequence[Any]) -> bool:
    """Whether the fractions are integer ns without leading zeros: 7.5 for 7 us and 5 ns.

    Kineto wrote such times for two weeks of March 2024. They are recognised by fractions of any length that may end in
    a zero, which no program that strips trailing zeros writes, and of which none begins with one, as a tenth of others
    do.
    """
    fractions = [format(value, "f").partition(".")[2] for value in values if _is_of_usual_size(value)]
    fractions = [digits for digits in fractions if digits]
    shorter = sum(len(digits) < 3 for digits in fractions)
    ending = sum(len(digits) > 1 and digits.endswith("0") for digits in fractions)
    begins = any(len(digits) > 3 or (len(digits) > 1 and digits.startswith("0")) for digits in fractions)
    return len(fractions) >= MIN_FRACTIONS and shorter > 0 and ending > 0 and not begins


def nanoseconds_from_unpadded_text(values: Sequence[Any]) -> Ints:
    """Like `nanoseconds_from_text`, for fractions that are integer ns without leading zeros."""
    return np.fromiter(map(_unpadded, values), np.int64, len(values))


def _is_of_usual_size(value: Any) -> bool:
    """Whether it is a Decimal that can be written without an exponent: others would have billions of zeros."""
    return isinstance(value, Decimal) and value.is_finite() and -30 <= value.adjusted() <= 18


def _unpadded(value: Any) -> int:
    if not _is_of_usual_size(value) or value.adjusted() < -3:
        return _nanoseconds(value)
    micros, _, nanos = format(value, "f").partition(".")
    return _nanoseconds(int(micros)) + int(nanos or 0) if len(nanos) <= 3 else _nanoseconds(value)


def _nanoseconds(value: Any) -> int:
    if isinstance(value, (str, float)) and not isinstance(value, bool):
        try:
            value = Decimal(value.strip() if isinstance(value, str) else repr(value))
        except ArithmeticError:
            return int(MISSING)
    if isinstance(value, Decimal):
        # A huge exponent would become an integer with as many digits.
        if not value.is_finite() or value.adjusted() > 18:
            return int(MISSING)
        result = int(_CONTEXT.to_integral_value(_CONTEXT.multiply(value, 1000)))
    elif isinstance(value, int) and not isinstance(value, bool):
        result = value * 1000
    else:
        return int(MISSING)
    return result if abs(result) < _LARGEST_NS else int(MISSING)


def parse_count(value: Any, sentinel: int = 2**32 - 1) -> int:
    """A count or an identifier, from a number or text; -1 if it is neither, or the 32-bit -1."""
    number = -1
    if isinstance(value, str) and len(value) < 20:
        with contextlib.suppress(ValueError):
            number = int(value)
    elif isinstance(value, (float, Decimal)):
        number_as_float = float(value)
        number = int(number_as_float) if number_as_float.is_integer() and abs(number_as_float) < 2**53 else -1
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    return number if 0 <= number < 2**62 and number != sentinel else -1
