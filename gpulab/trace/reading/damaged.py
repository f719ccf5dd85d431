"""Read damaged chunks of text: repair them, else read event by event, else count the losses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from gpulab.trace.reading.chunk_events import READ_EVERYTHING, Batch
from gpulab.trace.reading.chunks import ChunkPosition, seam_pattern
from gpulab.trace.reading.decoder import DECODE_ERRORS, batch_from_values, parse_events
from gpulab.trace.reading.limits import CUT_OFF, TOO_LARGE, UNREADABLE, Losses
from gpulab.trace.reading.repair import repair_json

_NEXT_VALUE = re.compile(r"[^\s,]|\Z")
_END_OF_EVENTS = re.compile(r"\}\s*(\](?:\s*,\s*\"|\s*\}?\s*\Z))")
_NAN = float("nan")
_MAX_NESTED_SEAMS = 8  # seams within one event that are recognised

# Cause of an event without an end, by position of its chunk.
_CAUSE_OF_MISSING_END = {ChunkPosition.STUCK: TOO_LARGE, ChunkPosition.LAST: CUT_OFF}


def _integer(digits: str) -> float:
    """Parse an integer; long ones become NaN, because old Pythons take minutes for a million digits."""
    return int(digits) if len(digits) < 40 else _NAN


_LENIENT = json.JSONDecoder(parse_int=_integer, parse_constant=lambda _: _NAN, parse_float=Decimal, strict=False)


@dataclass
class Salvage:
    """Readable events of a chunk; text after the last event of the file; text of an event that was cut in two."""

    batch: Batch = field(default_factory=lambda: Batch([], [], []))
    after: bytes | None = None
    rest: bytes = b""


def read_damaged_chunk(text: bytes, key: bytes, position: ChunkPosition, losses: Losses) -> Salvage:
    """Read all readable events of a damaged chunk, with exact times, and count the rest."""
    repaired, causes = repair_json(text)
    if position is not ChunkPosition.LAST and (batch := parse_events(b"[%b]" % repaired, READ_EVERYTHING)) is not None:
        losses.repairs.update(causes)
        return Salvage(batch)
    return _Search(text, key, position, losses).run()


class _Values(NamedTuple):
    """Values at the beginning of a text, and the remaining text."""

    events: list[Mapping[str, Any]]
    others: int  # values that are not events
    rest: str
    is_incomplete: bool  # the rest ends before its value does
    causes: tuple[str, ...]  # the repairs


class _Search:
    """Reads event by event, from seam to seam.

    Objects in the arguments of an event may look like events. A seam between them is recognised because the event has
    no end before it; such an event is tried up to the next few seams.
    """

    def __init__(self, text: bytes, key: bytes, position: ChunkPosition, losses: Losses) -> None:
        self._text, self._position, self._losses = text, position, losses
        cuts = [match.span() for match in seam_pattern(key).finditer(text)]
        self._begins = [0, *(end for _, end in cuts)]
        self._ends = [*(begin for begin, _ in cuts), len(text)]
        self._salvage = Salvage()

    def run(self) -> Salvage:
        """Read every event of the chunk."""
        at = 0
        while at < len(self._ends):
            at = self._event(at)
        return self._salvage

    def _event(self, at: int) -> int:
        """Read or count the event that begins at this seam; return the seam where the next one begins."""
        first = None
        for last in range(at, min(at + _MAX_NESTED_SEAMS, len(self._ends))):
            text = self._text[self._begins[at] : self._ends[last]]
            is_tail = last == len(self._ends) - 1
            if not is_tail and (batch := parse_events(b"[%b]" % text, READ_EVERYTHING)) is not None:
                self._salvage.batch.extend(batch)
                return last + 1
            values = _values(text)
            first = first or values
            if self._is_tail_read(values) if is_tail else not values.rest:
                self._take(values)
                return last + 1
            if not values.is_incomplete:
                break
        assert first is not None, "every event has at least one seam"
        self._take(first)
        if at == len(self._ends) - 1:
            self._lose_tail(first.rest)
        else:
            self._losses.add(UNREADABLE)
        return at + 1

    def _is_tail_read(self, values: _Values) -> bool:
        """Whether the end of the chunk is plausible: the end of all events, or part of an event."""
        if values.rest.startswith("]"):
            self._salvage.after = values.rest.encode()
        elif values.rest and self._position is ChunkPosition.INNER:
            # Either the cut was wrong, or the next chunk will show that the event is damaged.
            self._salvage.rest = values.rest.encode()
        elif values.rest:
            return False
        elif self._position is ChunkPosition.LAST:  # cut off within the events; the number of missing ones is unknown
            self._losses.lost[CUT_OFF] = 1
        return True

    def _lose_tail(self, rest: str) -> None:
        """Count an event without an end; the text after the events may still be readable."""
        close = _END_OF_EVENTS.search(rest)
        if close:
            self._salvage.after = rest[close.start(1) :].encode()
        self._losses.add(UNREADABLE if close else _CAUSE_OF_MISSING_END[self._position])

    def _take(self, values: _Values) -> None:
        self._salvage.batch.extend(batch_from_values(values.events))
        self._losses.add(UNREADABLE, values.others)
        if values.events or not values.rest:
            self._losses.repairs.update(values.causes)


def _values(text: bytes) -> _Values:
    repaired, causes = repair_json(text)
    content = repaired.decode()
    events: list[Mapping[str, Any]] = []
    others, is_incomplete = 0, False
    at = _next_value(content, 0)
    while at < len(content) and content[at] != "]":
        try:
            value, end = _LENIENT.raw_decode(content, at)
        except json.JSONDecodeError as error:
            is_incomplete = error.pos >= len(content) or error.msg.startswith("Unterminated string")
            break
        except DECODE_ERRORS:
            break
        at = _next_value(content, end)
        if isinstance(value, dict) and "ph" in value:
            events.append(value)
        else:
            others += 1
    return _Values(events, others, content[at:], is_incomplete, causes)


def _next_value(text: str, at: int) -> int:
    """Start of the next value, after spaces and commas."""
    match = _NEXT_VALUE.search(text, at)
    return match.start() if match else len(text)
