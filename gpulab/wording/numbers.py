"""Numbers as text: three significant figures, the unit that fits, and never "0" for a value that is not zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "not measured"  # None, NaN and infinity: there is no number to show
_SMALLEST = 1e-6  # numbers below it are written with an exponent


def number(value: float | None, figures: int = 3) -> str:
    """A number with so many significant figures: "0.0123", "1.5", "12", "1,234".

    Digits before the decimal point are never rounded away; zeros at the end of a fraction are dropped.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) < _SMALLEST:
        return f"{value:.{figures}g}"
    exponent = int(f"{value:.{figures - 1}e}".partition("e")[2])
    text = f"{value:,.{max(0, figures - 1 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(value: float, decimals: int) -> str:
    """A finite number with so many decimals; "<0.1" or ">-0.1" where rounding would leave nothing of it."""
    text = f"{value:,.{decimals}f}"
    if value == 0:
        return "0"
    if text.strip("-0.") == "":
        least = 10.0**-decimals
        return f"<{least:.{decimals}f}" if value > 0 else f">-{least:.{decimals}f}"
    return text


def quantity(value: float | None, unit: str, decimals: int = 0) -> str:
    """A reading and its unit: "55 W", "1,410 MHz"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{fixed(value, decimals)} {unit}"


def percent(frac: float | None, decimals: int = 0) -> str:
    """A fraction of one as a percentage: "41 %", "<1 %"."""
    return quantity(None if frac is None else 100 * frac, "%", decimals)


def ratio(value: float | None) -> str:
    """A ratio: "1.51x", "13.5x", "120x"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{fixed(value, _decimals(value))}x"


def ratio_range(low: float, high: float) -> str:
    """Two ratios with the same number of decimals: "1.20-1.51x"."""
    decimals = _decimals(max(low, high))
    lowest, highest = fixed(low, decimals), fixed(high, decimals)
    return f"{lowest}x" if lowest == highest else f"{lowest}-{highest}x"


def _decimals(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0


def size(bytes_: float | None) -> str:
    """Bytes in the binary unit that fits: "512 B", "1.53 GiB", "80 GiB"."""
    return _in_unit(bytes_, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def metric(value: float | None, unit: str) -> str:
    """A quantity with the metric prefix that fits its unit: `metric(2.5e9, "B/s")` is "2.5 GB/s"."""
    return _in_unit(value, 1000, tuple(prefix + unit for prefix in ("", "k", "M", "G", "T", "P")))


def _in_unit(value: float | None, factor: int, units: tuple[str, ...]) -> str:
    """The number in the smallest of the units, each `factor` times the one before, in which it stays below `factor`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    numbers = [number(value / factor**power) for power in range(len(units))]
    fitting = (index for index, text in enumerate(numbers) if abs(float(text.replace(",", ""))) < factor)
    index = next(fitting, -1)
    return f"{numbers[index]} {units[index]}"


def count(things: float, noun: str, plural_noun: str = "") -> str:
    """A number of things: "1 step", "1,234 steps", "2.5 cores", "2 batches"."""
    return f"{number(things)} {plural(things, noun, plural_noun)}"


def plural(things: float, noun: str, plural_noun: str = "") -> str:
    """The noun in the form that goes with the number: "step" for 1, "steps" for any other."""
    if things == 1:
        return noun
    return plural_noun or noun + ("es" if noun.endswith(("ch", "sh", "s", "x")) else "s")


def number_ranges(numbers: Sequence[int]) -> str:
    """Sorted integers, consecutive ones joined: 0, 1, 2, 5 is "0-2, 5"."""
    runs: list[list[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], each]
        else:
            runs.append([each])
    return ", ".join("-".join(map(str, ends)) for ends in runs)
