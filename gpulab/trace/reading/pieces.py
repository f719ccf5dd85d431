"""A stream of text -> the metadata before the events, then pieces of whole events: nothing is scanned twice.

A piece ends at the comma between two events. Such a seam is looked for from the end, by the first key that events of
this file have; that the cut is right is proven by the piece being valid JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from gpulab.trace.reading.limits import Limits
from gpulab.trace.reading.text_blocks import BLOCK

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]{1,40}")\s*:')
_BEFORE_KEY = re.compile(rb"\}\s*(,)\s*\{\s*\Z")
_UNKEYED_AFTER = BLOCK // 2


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


def first_key(events: bytearray, at: int) -> bytes:
    """The key every event of this file begins with, in quotes; the first of them stands there."""
    match = _FIRST_KEY.match(events, at)
    return bytes(match.group(1)) if match else b'"ph"'


class Piece(NamedTuple):
    """Some of the text of the events; valid until the next one is asked for."""

    place: Place
    text: memoryview
    array: memoryview  # the same in brackets: JSON, if the text is whole events


class Pieces:
    """The text of the events in pieces of half a block or more, cut between events, to be iterated over once.

    They lie in one buffer, one after the other: memory that is written again is several times faster than fresh one.
    """

    def __init__(self, start: bytes, text: Iterator[bytes], limits: Limits) -> None:
        self._buffer = bytearray(2 * BLOCK)
        self._buffer[0:1] = b"["
        self._end = 1  # of what is held; it begins behind the bracket
        self._rest: bytes | bytearray = b""  # what follows the piece that was given out
        self._text, self._limits = text, limits
        self.key = b""  # the first key of the file's events, known from the first piece on
        self._hold(start)

    def give_back(self, text: bytes) -> None:
        """Put the end of the last piece before the next: it was cut within an event."""
        self._rest = b",".join((text, self._rest))

    def __iter__(self) -> Iterator[Piece]:
        skipping, barren = False, 1  # up to there, what is held has no seam
        for block in self._text:
            self._hold(block)
            if self._end < BLOCK // 2:
                continue
            self.key = self.key or first_key(self._buffer, 1)
            if skipping:
                match = seams(self.key).search(self._buffer, 1, self._end)
                self._hold_only(self._buffer[match.end() if match else max(1, self._end - 256) : self._end])
                skipping = match is None
                continue
            seam = self._seam(barren)
            barren = max(1, self._end - 512) if seam is None else 1
            if seam is not None:
                self._rest = self._buffer[seam + 1 : self._end]
                yield self._piece(Place.INNER, seam)
                self._hold_only(self._rest)
            elif self._end > self._limits.event_bytes:
                self._rest = self._buffer[max(1, self._end - 256) : self._end]
                yield self._piece(Place.STUCK, self._end)
                self._hold_only(self._rest)
                skipping = True
        self.key = self.key or first_key(self._buffer[: self._end], 1)
        yield self._piece(Place.LAST, self._end)

    def _hold(self, text: bytes | bytearray) -> None:
        """More text; in a larger buffer if there is need, as pieces may still be looked at."""
        end = self._end + len(text)
        if end >= len(self._buffer):
            larger = bytearray(2 * end)
            larger[: self._end] = self._buffer[: self._end]
            self._buffer = larger
        self._buffer[self._end : end] = text
        self._end = end

    def _hold_only(self, text: bytes | bytearray) -> None:
        self._end = 1
        self._hold(text)

    def _piece(self, place: Place, end: int) -> Piece:
        self._buffer[end : end + 1] = b"]"
        view = memoryview(self._buffer)
        return Piece(place, view[1:end], view[: end + 1])

    def _seam(self, barren: int) -> int | None:
        seam = _last_seam(self._buffer, self.key, barren, self._end, 64)
        if seam is None and self._end > _UNKEYED_AFTER:
            seam = _last_seam(self._buffer, b'"', barren, self._end, 4096)
            # The first events may be others than most are, with another key first.
            self.key = self.key if seam is None else first_key(self._buffer, seam + 1)
        return seam


def seams(key: bytes) -> re.Pattern[bytes]:
    """What stands between two events whose first key this is."""
    return re.compile(rb"(?<=\})\s*,\s*(?=\{\s*" + re.escape(key) + rb"\s*:)")


def _last_seam(held: bytearray, key: bytes, barren: int, end: int, tries: int) -> int | None:
    """Where the comma of the last seam is."""
    for _ in range(tries):
        end = held.rfind(key, barren, end)
        if end < 0:
            return None
        begin = max(1, end - 256)
        if match := _BEFORE_KEY.search(held[begin:end]):
            return begin + match.start(1)
    return None
