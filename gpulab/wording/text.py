"""Text as words: sentences, articles, and foreign text that is safe to show."""

from __future__ import annotations

import re
import unicodedata

_SPELLED = "AEFHILMNORSX"  # letters whose names begin with a vowel sound: "an H100", "an RTX 4090"
# Cc control, Cf format (bidi overrides, zero width), Cs lone surrogate, Co private, Zl Zp line separators.
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def sentence(text: str) -> str:
    """The text with a capital letter at the front and a full stop at the end, unless it ends otherwise."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".") if text else ""


def article(text: str) -> str:
    """The text behind the article that fits its pronunciation: "an 18 ms step", "a 110 ms step", "an H100"."""
    if text[:1].isdigit():
        return f"an {text}" if re.match(r"8|1[18](?!\d)", text) else f"a {text}"
    spelled = text[:1].isupper() and not text[1:2].islower()
    return f"an {text}" if text.startswith(tuple(_SPELLED if spelled else "aeiouAEIOU")) else f"a {text}"


def shorten(text: str, most: int) -> str:
    """The text, with its middle left out if it has more than `most` characters."""
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def clean(text: str, most: int = 600) -> str:
    """One line of foreign text, safe to show: invisible characters and those that reorder the line are escaped."""
    return "".join(map(_escape, shorten(text, most)))


def clean_code(text: str, most: int = 6000) -> str:
    """Foreign text of several lines, safe to show; line ends stay, tabs become spaces."""
    return "\n".join("".join(map(_escape, line.replace("\t", "    "))) for line in shorten(text, most).split("\n"))


def _escape(character: str) -> str:
    if unicodedata.category(character) in _INVISIBLE:
        return character.encode("unicode_escape").decode("ascii")
    return character
