"""Times as text: one by itself, several on one scale, and the reading of a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpulab.wording.numbers import UNKNOWN, fixed, number

_UNITS = ((1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s"))
_MINUTES_FROM_S, _HOURS_FROM_MIN = 120, 120


@dataclass(frozen=True)
class Scale:
    """One unit and one number of decimals for times that are read together: a column, a range, an axis."""

    unit_ns: float
    unit: str
    decimals: int

    def number(self, ns: float) -> str:
        """The number without the unit: "12.0", "<0.1", and "0" for exactly 0."""
        return fixed(ns / self.unit_ns, self.decimals) if math.isfinite(ns) else UNKNOWN

    def __call__(self, ns: float) -> str:
        """The number and the unit."""
        return f"{self.number(ns)} {self.unit}" if math.isfinite(ns) else UNKNOWN

    def range(self, low_ns: float, high_ns: float) -> str:
        """Two numbers without the unit: "118-135"."""
        low, high = self.number(low_ns), self.number(high_ns)
        return low if low == high else f"{low}-{high}"


def scale(longest_ns: float, figures: int = 3) -> Scale:
    """The scale in which the longest of some times has so many significant figures."""
    unit_ns, unit = _unit(longest_ns, figures)
    if unit == "ns":
        return Scale(unit_ns, unit, 0)
    exponent = int(f"{abs(longest_ns) / unit_ns:.{figures - 1}e}".partition("e")[2])
    return Scale(unit_ns, unit, max(0, figures - 1 - max(0, exponent)))


def duration(ns: float | None) -> str:
    """One time with three significant figures: "412 us", "12 ms", "3.4 s", "2 min 5 s", "2 h 10 min"."""
    if ns is None or not math.isfinite(ns):
        return UNKNOWN
    seconds = round(abs(ns) / 1e9)
    if seconds >= _MINUTES_FROM_S:
        return f"{'-' if ns < 0 else ''}{_minutes(seconds)}"
    unit_ns, unit = _unit(ns, 3)
    return f"{fixed(ns, 0) if unit == 'ns' else number(ns / unit_ns)} {unit}"


def clock(elapsed_s: float) -> str:
    """Elapsed time as a clock shows it: "0:07", "12:30", "1:02:03"."""
    if not math.isfinite(elapsed_s):
        return UNKNOWN
    minutes, seconds = divmod(max(0, int(elapsed_s)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _unit(ns: float, figures: int) -> tuple[float, str]:
    """The smallest unit in which the rounded number stays below 1,000."""
    fits = (unit for unit in _UNITS if float(f"{abs(ns) / unit[0]:.{figures - 1}e}") < 1000)
    return next(fits, _UNITS[-1]) if math.isfinite(ns) else _UNITS[-1]


def _minutes(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes < _HOURS_FROM_MIN:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {rest} min" if rest else f"{hours:,} h"
