"""Split a stream of text into the metadata before the events and chunks of whole events; nothing is scanned twice.

A chunk ends at the comma between two events. Such a seam is searched backwards by the first key that the events of this
file have; the cut is proved right if the chunk is valid JSON.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple

from gpulab.trace.reading.limits import Limits
from gpulab.trace.reading.text_blocks import BLOCK

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]{1,40}")\s*:')
_BEFORE_KEY = re.compile(rb"\}\s*(,)\s*\{\s*\Z")
_UNKEYED_AFTER = BLOCK // 2


class EventsStart(NamedTuple):
    """Text before the events, beginning of the text of the events, and whether the file is a bare array."""

    before: bytes
    events: bytes
    is_array: bool


class ChunkPosition(Enum):
    """Position of a chunk."""

    INNER = "whole events, more follow"
    STUCK = "as much as the buffer may hold, without a seam"
    LAST = "all that is left"


def find_events(text: Iterator[bytes], limits: Limits) -> Generator[EventsStart, None, None]:
    """Yield positions where the events may begin; the caller takes the first whose metadata is valid."""
    buffer = b""
    for block in text:
        buffer = buffer + block if buffer else block.removeprefix(b"\xef\xbb\xbf").lstrip()
        if buffer.startswith(b"["):
            yield EventsStart(b"", buffer[1:], is_array=True)
            return
        if len(buffer) > limits.event_bytes or _EVENTS.search(buffer, max(0, len(buffer) - len(block) - 64)):
            break
    # The metadata before a nested object would not close; eight tries bound the cost of a malicious file.
    for match in islice(_EVENTS.finditer(buffer), 8):
        yield EventsStart(buffer[: match.start()], buffer[match.end() :], is_array=False)


def first_key(events: bytearray, at: int) -> bytes:
    """The first key of the events of this file, in quotes, read from the event at this position."""
    match = _FIRST_KEY.match(events, at)
    return bytes(match.group(1)) if match else b'"ph"'


class TextChunk(NamedTuple):
    """Part of the text of the events; valid until the next chunk is requested."""

    position: ChunkPosition
    text: memoryview
    array: memoryview  # the same in brackets: JSON, if the text is whole events


class ChunkReader:
    """Text of the events in chunks of half a block or more, cut between events; can be iterated once.

    All chunks use one buffer: writing to the same memory again is several times faster than writing to new memory.
    """

    def __init__(self, start: bytes, text: Iterator[bytes], limits: Limits) -> None:
        self._buffer = bytearray(2 * BLOCK)
        self._buffer[0:1] = b"["
        self._end = 1  # of the text in the buffer, which begins after the bracket
        self._rest: bytes | bytearray = b""  # text after the latest chunk
        self._text, self._limits = text, limits
        self.key = b""  # first key of the file's events, known from the first chunk on
        self._append(start)

    def give_back(self, text: bytes) -> None:
        """Put the end of the latest chunk before the next one: it was cut within an event."""
        self._rest = b",".join((text, self._rest))

    def __iter__(self) -> Iterator[TextChunk]:
        skipping, no_seam_before = False, 1  # the buffer has no seam before `no_seam_before`
        for block in self._text:
            self._append(block)
            if self._end < BLOCK // 2:
                continue
            self.key = self.key or first_key(self._buffer, 1)
            if skipping:
                match = seam_pattern(self.key).search(self._buffer, 1, self._end)
                self._replace(self._buffer[match.end() if match else max(1, self._end - 256) : self._end])
                skipping = match is None
                continue
            seam = self._seam(no_seam_before)
            no_seam_before = max(1, self._end - 512) if seam is None else 1
            if seam is not None:
                self._rest = self._buffer[seam + 1 : self._end]
                yield self._chunk(ChunkPosition.INNER, seam)
                self._replace(self._rest)
            elif self._end > self._limits.event_bytes:
                self._rest = self._buffer[max(1, self._end - 256) : self._end]
                yield self._chunk(ChunkPosition.STUCK, self._end)
                self._replace(self._rest)
                skipping = True
        self.key = self.key or first_key(self._buffer[: self._end], 1)
        yield self._chunk(ChunkPosition.LAST, self._end)

    def _append(self, text: bytes | bytearray) -> None:
        """Append text; allocates a new buffer if necessary, because earlier chunks may still be in use."""
        end = self._end + len(text)
        if end >= len(self._buffer):
            larger = bytearray(2 * end)
            larger[: self._end] = self._buffer[: self._end]
            self._buffer = larger
        memoryview(self._buffer)[self._end : end] = text  # a bytearray would copy the text twice
        self._end = end

    def _replace(self, text: bytes | bytearray) -> None:
        self._end = 1
        self._append(text)

    def _chunk(self, position: ChunkPosition, end: int) -> TextChunk:
        self._buffer[end : end + 1] = b"]"
        view = memoryview(self._buffer)
        return TextChunk(position, view[1:end], view[: end + 1])

    def _seam(self, no_seam_before: int) -> int | None:
        seam = _last_seam(self._buffer, self.key, no_seam_before, self._end, 64)
        if seam is None and self._end > _UNKEYED_AFTER:
            seam = _last_seam(self._buffer, b'"', no_seam_before, self._end, 4096)
            # The first events may differ from most others and have another first key.
            self.key = self.key if seam is None else first_key(self._buffer, seam + 1)
        return seam


def seam_pattern(key: bytes) -> re.Pattern[bytes]:
    """Pattern of the text between two events with this first key."""
    return re.compile(rb"(?<=\})\s*,\s*(?=\{\s*" + re.escape(key) + rb"\s*:)")


def _last_seam(buffer: bytearray, key: bytes, no_seam_before: int, end: int, tries: int) -> int | None:
    """Index of the comma of the last seam."""
    for _ in range(tries):
        end = buffer.rfind(key, no_seam_before, end)
        if end < 0:
            return None
        begin = max(1, end - 256)
        if match := _BEFORE_KEY.search(buffer[begin:end]):
            return begin + match.start(1)
    return None
