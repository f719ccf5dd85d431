"""Text that is almost JSON -> JSON: what profilers of several years really wrote where a strict parser stops."""

from __future__ import annotations

import re

_SPACES = bytes(32 if code < 32 else code for code in range(256))
# Strings come first, so that nothing inside them is taken for a bare word; an unclosed one runs to the end, once.
_STRING_OR_BARE = re.compile(
    rb'(?P<string>"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z))'
    rb"|-?\b(?:nan|inf|infinity)\b(?:\(\w*\))?|\bN/A(?!\w)",
    re.DOTALL | re.IGNORECASE,
)
_ESCAPE = re.compile(
    rb'(?P<good>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\["\\/bfnrt])'
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\"
)


def mended(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The text with its known faults removed, and what they were.

    Bytes that are not UTF-8 become U+FFFD, control characters spaces, bare NaN, inf and N/A null; backslashes that
    start no escape are kept as backslashes. Nothing else changes.
    """
    causes = []
    unicode = text.decode("utf-8", "replace").encode()
    if unicode != text:
        causes.append("text that is not UTF-8")
    spaced = unicode.translate(_SPACES)
    found: set[str] = set()

    def replacement(match: re.Match[bytes]) -> bytes:
        if match.lastgroup != "string":
            found.add("bare NaN, inf or N/A")
            return b"null"
        string = match.group()
        if b"\\" not in string:
            return string
        fixed = _ESCAPE.sub(_escaped, string)
        if fixed != string:
            found.add("broken escapes")
        return fixed

    result = _STRING_OR_BARE.sub(replacement, spaced)
    if not found and spaced != unicode:
        causes.append("control characters")
    return result, (*causes, *sorted(found))


def _escaped(match: re.Match[bytes]) -> bytes:
    if match.lastgroup == "good":
        return match.group()
    return rb"\ufffd" if match.lastgroup == "lone" else rb"\\"
