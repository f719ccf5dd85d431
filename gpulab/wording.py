"""Format numbers and foreign text. All conversion of ns to ms, bytes to GiB and fractions to percentages is here.

Numbers have three significant figures and the unit that fits; trailing zeros of a fraction are dropped ("12 ms", not
"12.0 ms"). Decimals are fixed only where numbers are compared with one another (`Scale`, `ratio_range`). A value that
is not zero is shown as "<1 %", never as "0 %"; only in a column, where decimals are fixed, it may be "0.00". None, NaN
and infinity are shown as "not measured".
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNKNOWN = "not measured"
_SMALLEST = 1e-6  # smaller numbers are written with an exponent
_TIME_UNITS = ((1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s"))
_MINUTES_FROM_S, _HOURS_FROM_MIN = 120, 120
_VOWEL_LETTERS = "AEFHILMNORSX"  # letters pronounced with an initial vowel: "an H100", "an RTX 4090"
_PLURAL = re.compile(r"\b([\w-]+?(?:ch|sh|ss|x)(?=es\b)|[\w-]{2,}(?=ies\b)|[\w-]+[a-rt-z](?=s\b))(es|ies|s)\b")
_SIMILARITY = 0.6  # 0-1, by difflib, from which a name counts as a typing error of another
_INVALID_CHOICE = re.compile(r"invalid choice: (['\"])(?P<typed>.*?)\1 \(choose from (?P<names>.*)\)")
_UNRECOGNIZED = re.compile(r"unrecognized arguments: (?P<word>[^\s=]+)")
# Cc control, Cf format (bidi overrides, zero width), Cs lone surrogate, Co private, Zl Zp line separators.
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def number(value: float | None, figures: int = 3) -> str:
    """Format a number with this many significant figures: "0.0123", "1.5", "12", "1,234".

    Digits before the decimal point are never rounded away; trailing zeros of a fraction are dropped.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    if abs(value) < _SMALLEST:
        return f"{value:.{figures}g}"
    text = f"{value:,.{max(0, figures - 1 - _exponent(value, figures))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _exponent(value: float, figures: int) -> int:
    """Return the power of ten of the first digit, after rounding."""
    return int(f"{value:.{figures - 1}e}".partition("e")[2])


def _fixed(value: float, decimals: int) -> str:
    """Format a finite number with this many decimals; "<0.1" or ">-0.1" if it would be rounded to zero."""
    text = f"{value:,.{decimals}f}"
    if value == 0:
        return "0"
    if text.strip("-0.") == "":
        limit = 10.0**-decimals
        return f"<{limit:.{decimals}f}" if value > 0 else f">-{limit:.{decimals}f}"
    return text


def quantity(value: float | None, unit: str, decimals: int = 0) -> str:
    """Format a value with its unit: "55 W", "1,410 MHz"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{_fixed(value, decimals)} {unit}"


def percent(frac: float | None, decimals: int = 0, *, figures: int | None = None) -> str:
    """Format a fraction as a percentage: "41 %", "<1 %"; `figures=2` also shows small ones: "0.0012 %"."""
    if frac is None or not math.isfinite(frac):
        return UNKNOWN
    return f"{_fixed(100 * frac, decimals) if figures is None else number(100 * frac, figures)} %"


def percent_range(low_frac: float, high_frac: float) -> str:
    """Format two fractions as a range of percentages: "0 to 20 %"."""
    low, high = percent(low_frac), percent(high_frac)
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def ratio(value: float | None) -> str:
    """Format a ratio: "1.51x", "13.5x", "120x"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{_fixed(value, _decimals(value))}x"


def ratio_range(low: float, high: float) -> str:
    """Format two ratios with the same number of decimals: "1.20-1.51x"."""
    decimals = _decimals(max(low, high))
    lowest, highest = _fixed(low, decimals), _fixed(high, decimals)
    return f"{lowest}x" if lowest == highest else f"{lowest}-{highest}x"


def money(amount: float | None, currency: str) -> str:
    """Return an amount of money: "$1,234", "0.25 EUR"."""
    if amount is None:
        return "unknown"
    text = f"{amount:,.0f}" if abs(amount) >= 100 else f"{amount:,.2f}"
    return f"${text}" if currency == "USD" else f"{text} {currency}"


def _decimals(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0


def size(bytes_: float | None) -> str:
    """Format bytes in the binary unit that fits: "512 B", "1.53 GiB", "80 GiB"."""
    return _in_unit(bytes_, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def metric(value: float | None, unit: str) -> str:
    """Format a quantity with the metric prefix that fits: `metric(2.5e9, "B/s")` is "2.5 GB/s"."""
    return _in_unit(value, 1000, tuple(prefix + unit for prefix in ("", "k", "M", "G", "T", "P")))


def _in_unit(value: float | None, factor: int, units: tuple[str, ...]) -> str:
    """Format in the smallest unit in which the number is below `factor`; each unit is `factor` times the one before."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    numbers = [number(value / factor**power) for power in range(len(units))]
    fitting = (index for index, text in enumerate(numbers) if abs(float(text.replace(",", ""))) < factor)
    index = next(fitting, -1)
    return f"{numbers[index]} {units[index]}"


def count(value: float, noun: str, plural_noun: str = "") -> str:
    """Format a count with its noun: "1 step", "1,234 steps", "2.5 cores", "2 batches"."""
    return f"{number(value)} {plural(value, noun, plural_noun)}"


def plural(value: float, noun: str, plural_noun: str = "") -> str:
    """Return the noun in singular or plural: "step" for 1, "steps" for any other number."""
    if value == 1:
        return noun
    return plural_noun or noun + ("es" if noun.endswith(("ch", "sh", "s", "x")) else "s")


def unit_of(value: float, unit: str) -> str:
    """Return a unit of several words in the singular for 1: "all-reduce per update" for "all-reduces per update".

    Its first noun in the plural changes; symbols such as "ms" and factors such as "times as fast" do not.
    """
    if value != 1 or unit.startswith("times"):
        return unit
    return _PLURAL.sub(lambda match: f"{match[1]}y" if match[2] == "ies" else match[1], unit, count=1)


def shell_word(word: str) -> str:
    """Return a word as typed after a magic: in quotes if it holds a blank, as in %gpureport "case 2"."""
    quote = "'" if '"' in word else '"'
    return f"{quote}{word}{quote}" if not word or re.search(r"[\s'\"]", word) else word


def number_ranges(numbers: Sequence[int]) -> str:
    """Format sorted integers as ranges: 0, 1, 2, 5 is "0-2, 5"."""
    ranges: list[list[int]] = []
    for value in numbers:
        if ranges and value == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], value]
        else:
            ranges.append([value])
    return ", ".join("-".join(map(str, ends)) for ends in ranges)


@dataclass(frozen=True)
class Scale:
    """One unit and one number of decimals for times shown together: a column, a range, an axis."""

    unit_ns: float
    unit: str
    decimals: int

    def number(self, ns: float) -> str:
        """Format without the unit, always with these decimals, for tables and ranges: "12.0", "0.0"."""
        if not math.isfinite(ns):
            return UNKNOWN
        text = f"{ns / self.unit_ns:,.{self.decimals}f}"
        return text if re.search("[1-9]", text) else text.removeprefix("-")

    def signed_number(self, ns: float) -> str:
        """Format a difference without the unit: "+1.5", "-12.0", and "0.0" if it is too small to show."""
        text = self.number(ns)
        return f"+{text}" if ns > 0 and re.search("[1-9]", text) else text

    def __call__(self, ns: float) -> str:
        """Format with the unit, for text: "12.0 ms", "<0.1 ms", and "0 ms" for exactly 0."""
        return f"{_fixed(ns / self.unit_ns, self.decimals)} {self.unit}" if math.isfinite(ns) else UNKNOWN

    @property
    def resolution_ns(self) -> float:
        """The smallest difference that two formatted times can show."""
        return float(self.unit_ns * 10.0**-self.decimals)

    def range(self, low_ns: float, high_ns: float) -> str:
        """Format a range without the unit: "118-135"."""
        low, high = self.number(low_ns), self.number(high_ns)
        return low if low == high else f"{low}-{high}"


def scale(longest_ns: float, figures: int = 3) -> Scale:
    """Return the scale in which the longest time has this many significant figures."""
    unit_ns, unit = _unit(longest_ns, figures)
    if unit == "ns" or not math.isfinite(longest_ns):
        return Scale(unit_ns, unit, 0)
    return Scale(unit_ns, unit, max(0, figures - 1 - max(0, _exponent(longest_ns / unit_ns, figures))))


def duration(ns: float | None, figures: int = 3) -> str:
    """Format a time with significant figures: "412 us", "12 ms", "3.4 s", "2 min 5 s", "2 h 10 min"."""
    if ns is None or not math.isfinite(ns):
        return UNKNOWN
    seconds = round(abs(ns) / 1e9)
    if seconds >= _MINUTES_FROM_S:
        return f"{'-' if ns < 0 else ''}{_minutes(seconds)}"
    unit_ns, unit = _unit(ns, figures)
    return f"{_fixed(ns, 0) if unit == 'ns' else number(ns / unit_ns, figures)} {unit}"


def clock_time(elapsed_s: float) -> str:
    """Format elapsed seconds like a clock: "0:07", "12:30", "1:02:03"."""
    if not math.isfinite(elapsed_s):
        return UNKNOWN
    minutes, seconds = divmod(max(0, int(elapsed_s)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _unit(ns: float, figures: int) -> tuple[float, str]:
    """Return the smallest unit in which the rounded number is below 1,000."""
    fits = (unit for unit in _TIME_UNITS if float(f"{abs(ns) / unit[0]:.{figures - 1}e}") < 1000)
    return next(fits, _TIME_UNITS[-1]) if math.isfinite(ns) else _TIME_UNITS[-1]


def _minutes(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes < _HOURS_FROM_MIN:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {rest} min" if rest else f"{hours:,} h"


def sentence(text: str) -> str:
    """Capitalise the first letter and end with a full stop, unless the text has other final punctuation.

    A name from code stays as it is: "torch.compile", "num_workers", "loss.item()".
    """
    text = text.strip()
    first = text.partition(" ")[0].rstrip(".,:;")
    start = text[:1] if re.search(r"[._()\[=]", first) else text[:1].upper()
    return start + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".") if text else ""


def article(text: str) -> str:
    """Prepend the article that fits the pronunciation: "an 18 ms step", "a 110 ms step", "an H100"."""
    if text[:1].isdigit():
        return f"an {text}" if re.match(r"8|1[18](?!\d)", text) else f"a {text}"
    is_acronym = text[:1].isupper() and not text[1:2].islower()
    return f"an {text}" if text.startswith(tuple(_VOWEL_LETTERS if is_acronym else "aeiouAEIOU")) else f"a {text}"


def shorten(text: str, max_length: int) -> str:
    """Replace the middle of the text with an ellipsis if it has more than `max_length` characters."""
    if len(text) <= max_length:
        return text
    head = (max_length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (max_length - 1 - head) :]}"


def clean(text: str, max_length: int = 600) -> str:
    """Make foreign text safe to show on one line: escape invisible characters and those that reorder text."""
    return "".join(map(_escape, shorten(text, max_length)))


def clean_code(text: str, max_length: int = 6000) -> str:
    """Make foreign text of several lines safe to show: keep line ends, replace tabs with spaces."""
    return "\n".join(
        "".join(map(_escape, line.replace("\t", "    "))) for line in shorten(text, max_length).split("\n")
    )


def _escape(character: str) -> str:
    if unicodedata.category(character) in _INVISIBLE:
        return character.encode("unicode_escape").decode("ascii")
    return character


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the valid name that is most like a mistyped one, whatever the case; None if none is like it."""
    import difflib  # only errors need it

    by_folded = {valid.casefold(): valid for valid in names}
    typed = name.casefold()
    close = difflib.get_close_matches(typed, by_folded, n=1, cutoff=_SIMILARITY)
    if close:
        return by_folded[close[0]]
    beginnings = [valid for folded, valid in by_folded.items() if typed and folded.startswith(typed)]
    return beginnings[0] if len(beginnings) == 1 else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "did you mean before?" with the valid name that is most like a mistyped one; "" if none is like it."""
    near = nearest_name(name, names)
    return "" if near is None else f"did you mean {near}?"


def usage_suggestion(message: str, options: Iterable[str]) -> str:
    """Return "did you mean --level?" for a message of argparse about a mistyped option or choice; "" for any other.

    `options`: the long options of the command.
    """
    if (choice := _INVALID_CHOICE.search(message)) is not None:
        return did_you_mean(choice["typed"], re.findall(r"[\w.-]+", choice["names"]))
    unrecognized = _UNRECOGNIZED.search(message)
    if unrecognized is None or not unrecognized["word"].startswith("-"):
        return ""
    return did_you_mean(unrecognized["word"], options)
