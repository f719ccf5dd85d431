"""How numbers and foreign text become words: the one place where ns turn into ms, bytes into GiB, fractions into %."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass

UNKNOWN = "not measured"
_TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_SIZE_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, "B"))


@dataclass(frozen=True)
class Scale:
    """One unit and one number of decimals for times that are read together: a column, a range, an axis."""

    unit_ns: float
    unit: str
    decimals: int

    def bare(self, ns: float) -> str:
        """The number alone; what is there but too small to see is not shown as nothing, and 0 is exactly 0."""
        if ns == 0:
            return "0"
        least = 10.0**-self.decimals
        value = ns / self.unit_ns
        if 0 < abs(value) < least / 2:
            return f"<{least:.{self.decimals}f}" if value > 0 else f">-{least:.{self.decimals}f}"
        return f"{value:.{self.decimals}f}"

    def __call__(self, ns: float) -> str:
        """The number and its unit."""
        return f"{self.bare(ns)} {self.unit}"

    def range(self, low_ns: float, high_ns: float) -> str:
        """From the one to the other, without the unit."""
        low, high = self.bare(low_ns), self.bare(high_ns)
        return low if low == high else f"{low}-{high}"


def scale(longest_ns: float, figures: int = 3) -> Scale:
    """The scale in which the longest of some times has so many significant figures."""
    unit_ns, unit = next(
        ((size, name) for size, name in _TIME_UNITS if abs(longest_ns) >= 0.9995 * size), _TIME_UNITS[-1]
    )
    if unit == "ns":
        return Scale(unit_ns, unit, 0)
    whole = math.floor(math.log10(max(abs(longest_ns) / unit_ns, 1.0)) + 1e-9) + 1
    return Scale(unit_ns, unit, max(0, figures - whole))


def duration(ns: float | None) -> str:
    """A time by itself, in three figures; minutes from two minutes on."""
    if ns is None or math.isnan(ns):
        return UNKNOWN
    if ns >= 120e9:
        minutes, seconds = divmod(round(ns / 1e9), 60)
        return f"{minutes} min {seconds} s"
    return scale(ns)(ns)


def percent(frac: float | None, decimals: int = 0) -> str:
    """A share of one as percent; what is there but small is not shown as nothing."""
    if frac is None or math.isnan(frac):
        return UNKNOWN
    if frac == 0:
        return "0 %"
    least = 10.0**-decimals
    if 0 < 100 * frac < least / 2:
        return f"<{least:.{decimals}f} %"
    return f"{100 * frac:.{decimals}f} %"


def size(count: float | None) -> str:
    """Bytes in the binary unit that fits."""
    if count is None or math.isnan(count):
        return UNKNOWN
    unit, name = next(((size, name) for size, name in _SIZE_UNITS if abs(count) >= size), _SIZE_UNITS[-1])
    value = count / unit
    return f"{value:.0f} {name}" if name == "B" or value >= 100 else f"{value:.1f} {name}"


def times(ratio: float) -> str:
    """A ratio: 1.51x."""
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:.0f}x"


def quantity(value: float | None, unit: str, decimals: int = 0) -> str:
    """A reading with its unit, or that there is none."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{value:,.{decimals}f} {unit}"


def counted(number: int, noun: str) -> str:
    """A number of things: 1 step, 1,234 steps."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def sentence(text: str) -> str:
    """The text with a capital letter at the front and a full stop at the end, unless it ends otherwise."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".") if text else ""


def shortened(text: str, most: int) -> str:
    """The text with its middle left out where it is longer than so many characters."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def clean(text: str, most: int = 600) -> str:
    """One line of foreign text, safe to show: what cannot be seen or would reorder the line is spelled out."""
    return "".join(map(_seen, shortened(text, most)))


def clean_code(text: str, most: int = 6000) -> str:
    """Foreign text of several lines, safe to show; line ends and tabs stay."""
    return "\n".join("".join(map(_seen, line.replace("\t", "    "))) for line in shortened(text, most).split("\n"))


def _seen(character: str) -> str:
    # Cc control, Cf format (bidi overrides, zero width), Cs lone surrogate, Co private, Zl Zp line separators.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character
