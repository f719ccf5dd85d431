"""Pieces of text that are not JSON as it should be: repaired, else read event by event, else counted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from gpulab.trace.reading.batches import CLOSEST, Batch
from gpulab.trace.reading.decoder import REFUSALS, batch_of, parse_events
from gpulab.trace.reading.limits import CUT_OFF, TOO_LARGE, UNREADABLE, Losses
from gpulab.trace.reading.pieces import Place, seams
from gpulab.trace.reading.repair import mended

_GAP = re.compile(r"[^\s,]|\Z")
_END = re.compile(r"\}\s*(\](?:\s*,\s*\"|\s*\}?\s*\Z))")
_NAN = float("nan")
_NESTED = 8  # seams within one event that are recognised as such

# What has happened to an event that does not end within its piece.
_UNENDED = {Place.STUCK: TOO_LARGE, Place.LAST: CUT_OFF}


def _integer(digits: str) -> float:
    """Old Pythons take minutes for an integer of a million digits."""
    return int(digits) if len(digits) < 40 else _NAN


_LENIENT = json.JSONDecoder(parse_int=_integer, parse_constant=lambda _: _NAN, parse_float=Decimal, strict=False)


@dataclass
class Salvage:
    """The readable events of a piece; the text after the last event of the file; the text of an event cut in two."""

    batch: Batch = field(default_factory=lambda: Batch([], [], []))
    after: bytes | None = None
    rest: bytes = b""


def salvage(text: bytes, key: bytes, place: Place, losses: Losses) -> Salvage:
    """Read all that can be read of a piece that is not sound, with exact times, and count the rest."""
    whole, causes = mended(text)
    if place is not Place.LAST and (batch := parse_events(b"[%b]" % whole, CLOSEST)) is not None:
        losses.mended.update(causes)
        return Salvage(batch)
    return _Search(text, key, place, losses).run()


class _Values(NamedTuple):
    """The values at the beginning of a text, one after the other, and the text from where there is no more."""

    events: list[Mapping[str, Any]]
    others: int  # values that are no events
    rest: str
    is_incomplete: bool  # the rest ends before its value does
    causes: tuple[str, ...]  # what had to be repaired


class _Search:
    """Reads event by event, from seam to seam.

    Objects in the arguments of an event may look like events. A seam between these is noticed by the event having no
    end before it; such an event is tried up to the next seams.
    """

    def __init__(self, text: bytes, key: bytes, place: Place, losses: Losses) -> None:
        self._text, self._place, self._losses = text, place, losses
        cuts = [match.span() for match in seams(key).finditer(text)]
        self._begins = [0, *(end for _, end in cuts)]
        self._ends = [*(begin for begin, _ in cuts), len(text)]
        self._found = Salvage()

    def run(self) -> Salvage:
        """Read every event of the piece."""
        at = 0
        while at < len(self._ends):
            at = self._event(at)
        return self._found

    def _event(self, at: int) -> int:
        """Read or count the event that begins at this seam, and return the seam where the next one begins."""
        first = None
        for last in range(at, min(at + _NESTED, len(self._ends))):
            text = self._text[self._begins[at] : self._ends[last]]
            is_tail = last == len(self._ends) - 1
            if not is_tail and (batch := parse_events(b"[%b]" % text, CLOSEST)) is not None:
                self._found.batch.extend(batch)
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
        """Whether the end of the piece makes sense; it may be the end of all events, or of a part of one."""
        if values.rest.startswith("]"):
            self._found.after = values.rest.encode()
        elif values.rest and self._place is Place.INNER:
            # The cut was wrong, or the next piece will show that the event is.
            self._found.rest = values.rest.encode()
        elif values.rest:
            return False
        elif self._place is Place.LAST:  # within its events; how many came after is not known
            self._losses.lost[CUT_OFF] = 1
        return True

    def _lose_tail(self, rest: str) -> None:
        """Count an event that has no end; what follows the events may still be found."""
        close = _END.search(rest)
        if close:
            self._found.after = rest[close.start(1) :].encode()
        self._losses.add(UNREADABLE if close else _UNENDED[self._place])

    def _take(self, values: _Values) -> None:
        self._found.batch.extend(batch_of(values.events))
        self._losses.add(UNREADABLE, values.others)
        if values.events or not values.rest:
            self._losses.mended.update(values.causes)


def _values(text: bytes) -> _Values:
    fixed, causes = mended(text)
    whole = fixed.decode()
    events: list[Mapping[str, Any]] = []
    others, is_incomplete = 0, False
    at = _after_gap(whole, 0)
    while at < len(whole) and whole[at] != "]":
        try:
            value, end = _LENIENT.raw_decode(whole, at)
        except json.JSONDecodeError as error:
            is_incomplete = error.pos >= len(whole) or error.msg.startswith("Unterminated string")
            break
        except REFUSALS:
            break
        at = _after_gap(whole, end)
        if isinstance(value, dict) and "ph" in value:
            events.append(value)
        else:
            others += 1
    return _Values(events, others, whole[at:], is_incomplete, causes)


def _after_gap(text: str, at: int) -> int:
    """Where the next value begins: behind spaces and commas."""
    match = _GAP.search(text, at)
    return match.start() if match else len(text)
