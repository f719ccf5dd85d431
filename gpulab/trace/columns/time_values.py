"""Times of events in microseconds, and their conversion to nanoseconds: as numbers, or already in decimal digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpulab.intervals import Ints
from gpulab.trace.columns.times import (
    EXACT_BELOW_US,
    MIN_FRACTIONS,
    MISSING,
    are_unpadded,
    nanoseconds_from_numbers,
    nanoseconds_from_text,
    nanoseconds_from_unpadded_text,
)

_PADDED_DECIMALS = 3
_INEXACT_NS = int(EXACT_BELOW_US) * 1000
_FACTORS = 10 ** np.arange(_PADDED_DECIMALS, -1, -1)  # of a fraction with this many decimals


class Times(Protocol):
    """A time for each event, as the trace has it."""

    def rounded_ns(self) -> Ints | None:
        """The times as float64 holds them, MISSING if there is none; None if it may not hold them exactly to the ns."""

    def are_unpadded(self) -> bool:
        """Whether the fractions are integer ns without leading zeros, for exact times."""

    def exact_ns(self, *, unpadded: bool) -> Ints:
        """The times as their decimal digits say, which may be unpadded; MISSING for unusable ones."""


class NumberTimes:
    """Times as ints and floats, or as Decimals where the exact time is needed."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def rounded_ns(self) -> Ints | None:
        """The times as float64 holds them."""
        return nanoseconds_from_numbers(self._values)

    def are_unpadded(self) -> bool:
        """Whether the fractions are integer ns without leading zeros."""
        return are_unpadded(self._values)

    def exact_ns(self, *, unpadded: bool) -> Ints:
        """The times as their decimal digits say."""
        return (nanoseconds_from_unpadded_text if unpadded else nanoseconds_from_text)(self._values)


@dataclass(frozen=True, eq=False)
class DecimalTimes:
    """Times in ns that a parser of decimal digits computed, and the number of decimals that each had in us.

    That number is in the lowest byte of `packed_decimals` after a shift.
    """

    ns: Ints
    packed_decimals: Ints
    shift: int = 0

    @property
    def decimals(self) -> Ints:
        """The number of decimals of each time."""
        return self.packed_decimals >> self.shift & 0xFF

    def rounded_ns(self) -> Ints | None:
        """The times, unless they are too large for a fraction, or for a missing value, in float64."""
        if not len(self.ns) or (self.ns.max() < _INEXACT_NS and self.ns.min() > -_INEXACT_NS):
            return self.ns
        is_missing = self.ns == MISSING
        is_whole = not is_missing.any() and not self.decimals.any()
        return self.ns if is_whole or not (np.abs(self.ns) >= _INEXACT_NS).any() else None  # abs(MISSING) is negative

    def are_unpadded(self) -> bool:
        """Whether the fractions are integer ns without leading zeros; see `times.are_unpadded`."""
        has_fraction = self.decimals > 0
        decimals = self.decimals[has_fraction]
        if len(decimals) < MIN_FRACTIONS or (decimals > _PADDED_DECIMALS).any():
            return False
        digits = self._fractions()[has_fraction]
        begins_with_zero = (decimals > 1) & (digits * 10 < 10**decimals)
        ends_with_zero = (decimals > 1) & (digits % 10 == 0)
        return bool((decimals < _PADDED_DECIMALS).any() and ends_with_zero.any() and not begins_with_zero.any())

    def exact_ns(self, *, unpadded: bool) -> Ints:
        """The times; from unpadded fractions, the digits of a fraction count as ns."""
        if not unpadded:
            return self.ns
        whole_us = np.sign(self.ns) * (np.abs(self.ns) // 1000)
        is_short = (self.decimals > 0) & (self.decimals <= _PADDED_DECIMALS)
        return np.where(is_short, whole_us * 1000 + self._fractions(), self.ns)

    def _fractions(self) -> Ints:
        """The digits after the point as a number; of no use where there are more than three."""
        return np.abs(self.ns) % 1000 // _FACTORS[np.minimum(self.decimals, _PADDED_DECIMALS)]
