"""Text that is almost JSON -> JSON: what profilers of several years really wrote where a strict parser stops."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

NOT_UTF8 = "text that is not UTF-8"
CONTROL = "control characters"
ESCAPES = "broken escapes"
BARE = "bare NaN, inf or N/A"

_SPACES = bytes(32 if code < 32 else code for code in range(256))
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
# The engine skips fast to a set of letters, and slowly to a choice of words.
_BARE = re.compile(rb"[nNiI](?:[aA][nN](?:\(\w*\))?|nf(?:inity)?|/A)(?=\s*[,\]}])")
_BEFORE_BARE = re.compile(rb"[:\[,]\s*(-?)\Z")
_ESCAPE = re.compile(
    rb"(?P<good>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb'|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\["\\/bfnrt])'
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\"
)


def mended(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The text with its known faults removed, and what they were.

    Bytes that are not UTF-8 become U+FFFD, control characters spaces, bare NaN, inf and N/A null; backslashes that
    start no escape are kept as backslashes. Nothing else changes but the kind of white space between values.
    """
    causes = []
    result = text.decode("utf-8", "replace").encode()
    if result != text:
        causes.append(NOT_UTF8)
    if b"\\" in result:
        whole = _ESCAPE.sub(_escaped, result)
        causes += [ESCAPES] if whole != result else []
        result = whole
    quotes = _quotes(result)
    causes += [CONTROL] if _has_control(result, quotes) else []
    result = result.translate(_SPACES)
    parts, at = [], 0
    for begin, end in _bare(result, quotes):
        parts += [result[at:begin], b"null"]
        at = end
    causes += [BARE] if parts else []
    return b"".join((*parts, result[at:])), tuple(causes)


def _bare(text: bytes, quotes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where words stand in place of a number, with their sign."""
    found = [match.span() for match in _BARE.finditer(text)]
    inside = _inside(np.array(found, np.int64).reshape(-1, 2)[:, 0], quotes)
    for (begin, end), within in zip(found, inside.tolist(), strict=True):
        before = None if within else _BEFORE_BARE.search(text, max(0, begin - 64), begin)
        if before:
            yield before.start(1), end


def _escaped(match: re.Match[bytes]) -> bytes:
    if match.lastgroup == "good":
        return match.group()
    return rb"\ufffd" if match.lastgroup == "lone" else rb"\\"


def _quotes(text: bytes) -> NDArray[np.int64]:
    """Where strings begin and end."""
    if b"\\" in text:  # of the same length, so that places stay what they are
        text = text.replace(rb"\\", b"..").replace(rb"\"", b"..")
    return np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))


def _inside(places: NDArray[np.int64], quotes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places lie within a string: those behind an odd number of quotes."""
    return np.asarray(np.searchsorted(quotes, places) % 2 == 1)


def _has_control(text: bytes, quotes: NDArray[np.int64]) -> bool:
    if _CONTROL.search(text):
        return True
    letters = np.frombuffer(text, np.uint8)
    white = np.flatnonzero((letters == 9) | (letters == 10) | (letters == 13))  # allowed, but not within a string
    return bool(_inside(white, quotes).any())
