"""How text finds its place in a picture: measured as it will be drawn, broken into lines that fit."""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import PurePath
from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

LEFT_FRAC = 0.012  # where title and source line begin, and how much they leave free on the right
# A name may hold what no font at hand has: it is drawn as a box, and stands in full in the table and in words.
MISSING = r"Glyph .* missing from"
_FAMILY = "DejaVu Sans"
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mun]?s|[KMGT]?i?B|W|[MG]Hz|C|[TG]FLOP/s)\b|%)")  # stays with its number
_HINTED = 1.03  # letters are drawn on whole pixels, which makes a line a little longer than its outline


@cache
def _font(weight: str) -> FontProperties:
    return FontProperties(family=_FAMILY, weight=weight, size=10)


@cache
def _measure() -> TextToPath:
    return TextToPath()


def width_in(text: str, size_pt: float, weight: str = "normal") -> float:
    """How wide a line of text will be."""
    if not text:
        return 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=MISSING)
        width, _, _ = _measure().get_text_width_height_descent(text, _font(weight), False)
    return float(width) / 10 * size_pt / 72 * _HINTED


def broken(
    inside: Figure | float, text: str, size_pt: float, of_width: float = 1 - 2 * LEFT_FRAC, weight: str = "normal"
) -> str:
    """The text in lines no wider than this share of a figure, or of so many inches; a word too long for one is cut."""
    most_in = of_width * (inside.get_figwidth() if isinstance(inside, Figure) else inside)
    lines: list[str] = []
    line = ""
    for word in _UNIT.sub("\N{NO-BREAK SPACE}", text).split(" "):
        longer = f"{line} {word}" if line else word
        if width_in(longer, size_pt, weight) <= most_in:
            line = longer
            continue
        if line:
            lines.append(line)
        *full, line = _cut(word, size_pt, most_in, weight)
        lines += full
    return "\n".join([*lines, line] if line else lines)


def _cut(word: str, size_pt: float, most_in: float, weight: str) -> list[str]:
    """A word in pieces that fit."""
    pieces = []
    while width_in(word, size_pt, weight) > most_in:
        at = max(1, int(len(word) * most_in / width_in(word, size_pt, weight)))
        while at > 1 and width_in(word[:at], size_pt, weight) > most_in:
            at -= 1
        pieces.append(word[:at])
        word = word[at:]
    return [*pieces, word]


def fitting(text: str, most_in: float, size_pt: float) -> str:
    """The text as it is if it fits, else with its middle left out so that it does."""
    if width_in(text, size_pt) <= most_in:
        return text
    keep = max(2, int(len(text) * most_in / width_in(text, size_pt)))
    while True:
        head = (keep - 1) * 2 // 3
        short = f"{text[:head]}…{text[len(text) - (keep - 1 - head) :]}"
        if keep <= 2 or width_in(short, size_pt) <= most_in:
            return short
        keep -= 1


def extension(fname: Any, stated: str | None) -> str:
    """The format in which a figure will be saved, by what is stated or by the name of the file."""
    if stated:
        return stated.lower()
    name = str(fname) if isinstance(fname, str | PurePath) else ""
    return PurePath(name).suffix.removeprefix(".").lower()
