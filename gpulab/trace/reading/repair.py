"""Repair text that is almost JSON: faults that profilers of several years produced and that strict parsers reject."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

NOT_UTF8 = "text that is not UTF-8"
CONTROL = "control characters"
ESCAPES = "broken escapes"
BARE_VALUES = "bare NaN, inf or N/A"

_SPACES = bytes(32 if code < 32 else code for code in range(256))
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
# The regex engine is fast with a set of letters, and slow with alternatives.
_BARE_VALUE = re.compile(rb"[nNiI](?:[aA][nN](?:\(\w*\))?|nf(?:inity)?|/A)(?=\s*[,\]}])")
_BEFORE_BARE_VALUE = re.compile(rb"[:\[,]\s*(-?)\Z")
_ESCAPE = re.compile(
    rb"(?P<good>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb'|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\["\\/bfnrt])'
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\"
)


def repair_json(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The text with known faults repaired, and the list of repairs.

    Bytes that are not UTF-8 become U+FFFD, control characters become spaces, bare NaN, inf and N/A become null;
    backslashes that start no escape remain as backslashes. Apart from white space between values, nothing else changes.
    """
    causes = []
    result = text.decode("utf-8", "replace").encode()
    if result != text:
        causes.append(NOT_UTF8)
    if b"\\" in result:
        unescaped = _ESCAPE.sub(_escaped, result)
        causes += [ESCAPES] if unescaped != result else []
        result = unescaped
    quotes = _quotes(result)
    causes += [CONTROL] if _has_control(result, quotes) else []
    result = result.translate(_SPACES)
    parts, at = [], 0
    for begin, end in _bare_values(result, quotes):
        parts += [result[at:begin], b"null"]
        at = end
    causes += [BARE_VALUES] if parts else []
    return b"".join((*parts, result[at:])), tuple(causes)


def _bare_values(text: bytes, quotes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Spans of words in place of a number, including their sign."""
    spans = [match.span() for match in _BARE_VALUE.finditer(text)]
    in_string = _is_in_string(np.array(spans, np.int64).reshape(-1, 2)[:, 0], quotes)
    for (begin, end), quoted in zip(spans, in_string.tolist(), strict=True):
        before = None if quoted else _BEFORE_BARE_VALUE.search(text, max(0, begin - 64), begin)
        if before:
            yield before.start(1), end


def _escaped(match: re.Match[bytes]) -> bytes:
    if match.lastgroup == "good":
        return match.group()
    return rb"\ufffd" if match.lastgroup == "lone" else rb"\\"


def _quotes(text: bytes) -> NDArray[np.int64]:
    """Positions of the quotes that begin and end strings."""
    if b"\\" in text:  # replaced by text of the same length, so that positions stay valid
        text = text.replace(rb"\\", b"..").replace(rb"\"", b"..")
    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))


def _is_in_string(positions: NDArray[np.int64], quotes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which positions are inside a string, i.e. after an odd number of quotes."""
    return np.asarray(np.searchsorted(quotes, positions) % 2 == 1)


def _has_control(text: bytes, quotes: NDArray[np.int64]) -> bool:
    if _CONTROL.search(text):
        return True
    letters = np.frombuffer(text, np.uint8)
    white = np.flatnonzero((letters == 9) | (letters == 10) | (letters == 13))  # not allowed within a string
    return bool(_is_in_string(white, quotes).any())
