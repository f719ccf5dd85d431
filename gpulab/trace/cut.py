"""A stream of text -> the metadata before the events, then pieces of whole events: nothing is scanned twice.

A piece ends at the comma between two events. Such a seam is looked for from the end, by the first key that events of
this file have; that the cut is right is proven by the piece being valid JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from gpulab.trace.blocks import BLOCK
from gpulab.trace.limits import Limits

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]{1,40}")\s*:')
_BEFORE_KEY = re.compile(rb"\}\s*(,)\s*\{\s*\Z")
_UNKEYED_AFTER = 4 * BLOCK


class Start(NamedTuple):
    """The text before the events, the first of the text of the events, and whether the file is a bare array."""

    before: bytes
    events: bytes
    bare: bool


class Place(Enum):
    """Where a piece stands."""

    INNER = "whole events, more follow"
    STUCK = "as much as may be held, without a seam"
    LAST = "all that is left"


def find_events(text: Iterator[bytes], limits: Limits) -> Iterator[Start]:
    """Each place where the events may begin, best last tried; the caller takes the first whose metadata makes sense."""
    held = b""
    for block in text:
        held = held + block if held else block.removeprefix(b"\xef\xbb\xbf").lstrip()
        if held.startswith(b"["):
            yield Start(b"", held[1:], bare=True)
            return
        if len(held) > limits.event_bytes or _EVENTS.search(held, max(0, len(held) - len(block) - 64)):
            break
    # Within a nested object the metadata before would not close; eight tries bound what a hostile file can cost.
    places = [match.span() for match, _ in zip(_EVENTS.finditer(held), range(8), strict=False)]
    for start, end in places:
        yield Start(held[:start], held[end:], bare=False)


def first_key(events: bytes) -> bytes:
    """The key every event of this file begins with, in quotes."""
    match = _FIRST_KEY.match(events)
    return match.group(1) if match else b'"ph"'


class Pieces:
    """The text of the events in pieces of half a block or more, cut between events, to be iterated over once."""

    def __init__(self, start: bytes, text: Iterator[bytes], limits: Limits) -> None:
        self._held, self._text, self._limits = start, text, limits
        self.key = b""  # the first key of the file's events, known from the first piece on

    def give_back(self, text: bytes) -> None:
        """Put the end of the last piece before the next: it was cut within an event."""
        self._held = b",".join((text, self._held))

    def __iter__(self) -> Iterator[tuple[bytes | memoryview, Place]]:
        skipping, barren = False, 0  # so much of what is held has no seam
        for block in self._text:
            self._held += block
            if len(self._held) < BLOCK // 2:
                continue
            self.key = self.key or first_key(self._held)
            if skipping:
                match = seams(self.key).search(self._held)
                self._held = self._held[match.end() :] if match else self._held[-256:]
                skipping = match is None
                continue
            seam = self._seam(barren)
            barren = max(0, len(self._held) - 512) if seam is None else 0
            if seam is not None:
                piece = memoryview(self._held)[:seam]
                self._held = self._held[seam + 1 :]
                yield piece, Place.INNER
            elif len(self._held) > self._limits.event_bytes:
                piece = memoryview(self._held)
                self._held, skipping = self._held[-256:], True
                yield piece, Place.STUCK
        self.key = self.key or first_key(self._held)
        yield self._held, Place.LAST

    def _seam(self, barren: int) -> int | None:
        seam = _last_seam(self._held, self.key, barren, 64)
        if seam is None and len(self._held) > _UNKEYED_AFTER:
            seam = _last_seam(self._held, b'"', barren, 4096)
        return seam


def seams(key: bytes) -> re.Pattern[bytes]:
    """What stands between two events whose first key this is."""
    return re.compile(rb"(?<=\})\s*,\s*(?=\{\s*" + re.escape(key) + rb"\s*:)")


def _last_seam(held: bytes, key: bytes, barren: int, tries: int) -> int | None:
    """Where the comma of the last seam is."""
    at = len(held)
    for _ in range(tries):
        at = held.rfind(key, barren, at)
        if at < 0:
            return None
        begin = max(0, at - 256)
        if match := _BEFORE_KEY.search(held[begin:at]):
            return begin + match.start(1)
    return None
