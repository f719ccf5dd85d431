"""Text layout in charts: measure text as it will be drawn, and break it into lines that fit."""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import PurePath
from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

LEFT_FRAC = 0.012  # margin of title and source line, left and right
# A name may contain glyphs that no installed font has: they are drawn as boxes; table and description have the name.
MISSING_GLYPH = r"Glyph .* missing from"
_FAMILY = "DejaVu Sans"
SVG_FAMILIES = "DejaVu Sans,Verdana,sans-serif"  # Verdana has nearly the same widths
_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[mun]?s|[KMGT]?i?B|W|[MG]Hz|C|[TG]FLOP/s)\b|%)"
)  # is not separated from its number
_HINTED = 1.07  # letters are aligned to pixels, so a line is a little longer than its outline


@cache
def _font(weight: str) -> FontProperties:
    return FontProperties(family=_FAMILY, weight=weight, size=10)


@cache
def _measure() -> TextToPath:
    return TextToPath()


def text_width_in(text: str, size_pt: float, weight: str = "normal") -> float:
    """Return the width of a line of text in inches."""
    if not text:
        return 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=MISSING_GLYPH)
        width, _, _ = _measure().get_text_width_height_descent(text, _font(weight), False)
    return float(width) / 10 * size_pt / 72 * _HINTED


def svg_text_width(text: str, size_pt: float, weight: str = "normal") -> float:
    """Return the width of a line of text in points, as drawn in an SVG: letters are not aligned to pixels."""
    return 72 * text_width_in(text, size_pt, weight) / _HINTED


def break_lines(
    figure: Figure | float, text: str, size_pt: float, of_width: float = 1 - 2 * LEFT_FRAC, weight: str = "normal"
) -> str:
    """Break text into lines of at most this fraction of a figure, or of a width in inches; longer words are cut."""
    max_in = of_width * (figure.get_figwidth() if isinstance(figure, Figure) else figure)
    lines: list[str] = []
    line = ""
    for word in _UNIT.sub("\N{NO-BREAK SPACE}", text).split(" "):
        longer = f"{line} {word}" if line else word
        if text_width_in(longer, size_pt, weight) <= max_in:
            line = longer
            continue
        if line:
            lines.append(line)
        *full_lines, line = _cut(word, size_pt, max_in, weight)
        lines += full_lines
    return "\n".join([*lines, line] if line else lines)


def _cut(word: str, size_pt: float, max_in: float, weight: str) -> list[str]:
    """Cut a word into parts that fit."""
    parts = []
    while text_width_in(word, size_pt, weight) > max_in:
        end = max(1, int(len(word) * max_in / text_width_in(word, size_pt, weight)))
        while end > 1 and text_width_in(word[:end], size_pt, weight) > max_in:
            end -= 1
        parts.append(word[:end])
        word = word[end:]
    return [*parts, word]


def shorten_to_width(text: str, max_in: float, size_pt: float) -> str:
    """Return the text if it fits, else the text with its middle replaced by an ellipsis."""
    if text_width_in(text, size_pt) <= max_in:
        return text
    keep = max(2, int(len(text) * max_in / text_width_in(text, size_pt)))
    while True:
        head = (keep - 1) * 2 // 3
        short = f"{text[:head]}…{text[len(text) - (keep - 1 - head) :]}"
        if keep <= 2 or text_width_in(short, size_pt) <= max_in:
            return short
        keep -= 1


def file_format(fname: Any, stated: str | None) -> str:
    """Return the file format of a figure: the explicit one, or the suffix of the file name."""
    if stated:
        return stated.lower()
    name = str(fname) if isinstance(fname, str | PurePath) else ""
    return PurePath(name).suffix.removeprefix(".").lower()
