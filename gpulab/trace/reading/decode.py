"""Pieces of text -> events. What an engine refuses is read in ever smaller parts, then mended, then counted."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from gpulab.trace.reading import json_lenient
from gpulab.trace.reading.batches import NO_HEADER, Batch, Header, How, Times, batch_of
from gpulab.trace.reading.limits import CUT_OFF, METADATA, TOO_LARGE, UNREADABLE, Losses
from gpulab.trace.reading.pieces import Place, seams
from gpulab.trace.reading.repair import mended

engine: ModuleType = json_lenient
with contextlib.suppress(ImportError):  # three times as fast, where there is a build of msgspec
    from gpulab.trace.reading import json_fast as engine

_REFUSED = json_lenient.REFUSED
_GAP = re.compile(r"[^\s,]|\Z")
_END = re.compile(rb"\}\s*(\](?:\s*,\s*\"|\s*\}?\s*\Z))")

# What has happened to an event that does not end within its piece.
_UNENDED = {Place.STUCK: TOO_LARGE, Place.LAST: CUT_OFF}
CLOSEST = How(times=Times.TEXT, shapes=True, collectives=True, waits=True, known=False)  # what is read once only
_NESTED = 8  # seams within one event that are recognised as such
Value = Mapping[str, Any]


@dataclass
class Decoded:
    """What was read of a piece; the text after the last event of the file; the text of an event cut in two."""

    batches: list[Batch] = field(default_factory=list)
    after: bytes | None = None
    rest: bytes = b""


class _Final(NamedTuple):
    """The same, of the end of a piece."""

    values: list[Value]
    after: bytes | None = None
    rest: bytes = b""


def inner(array: bytes | memoryview, how: How) -> Batch | None:
    """The events of a sound piece, in brackets; None where anything about it is not as it should be."""
    try:
        batch: Batch = engine.inner(array, how)
    except _REFUSED:
        return None
    return batch


def ending(text: bytes | memoryview, how: How, bare: bool) -> tuple[Batch, Header] | None:
    """The events and the metadata of a sound last piece; None where anything about it is not as it should be."""
    try:
        found: tuple[Batch, Header] = engine.ending(text, how, bare)
    except _REFUSED:
        return None
    return found


def header(before: bytes, after: bytes) -> Header | None:
    """The metadata around the events; None where it is not JSON even when mended."""
    text = before + b'"traceEvents":[]' + after
    try:
        found: Header = engine.header(text)
    except _REFUSED:
        text = mended(text)[0]
    else:
        return found
    try:
        found = engine.header(text)
    except _REFUSED:
        return None
    return found


def damaged(text: bytes, key: bytes, place: Place, losses: Losses) -> Decoded:
    """All that can be read of a piece that is not sound, with exact times; the rest is counted."""
    whole, causes = mended(text)
    if place is not Place.LAST and (batch := inner(b"[%b]" % whole, CLOSEST)) is not None:
        losses.mended.update(causes)
        return Decoded([batch])
    return _Search(text, key, place, losses).run()


class _Search:
    """From seam to seam: as many events at once as are sound, and what is not, one by one.

    After a failure half as many are tried, after a success twice as many: little damage costs little. Every try
    begins where the last ended, so that a seam within an event (objects in its arguments look like events) is
    noticed: the event up to there has no end.
    """

    def __init__(self, text: bytes, key: bytes, place: Place, losses: Losses) -> None:
        self._text, self._place, self._losses = text, place, losses
        cuts = [match.span() for match in seams(key).finditer(text)]
        # The part behind the last seam may have no end within this piece; it is no part of a try.
        self._begins = [0, *(end for _, end in cuts)]
        self._ends = [begin for begin, _ in cuts]
        self._found = Decoded()
        self._values: list[Value] = []

    def run(self) -> Decoded:
        at, many = 0, len(self._ends)
        while at < len(self._ends):
            many = min(many, len(self._ends) - at)
            batch = inner(b"[%b]" % self._text[self._begins[at] : self._ends[at + many - 1]], CLOSEST)
            if batch is not None:
                self._found.batches.append(batch)
                at, many = at + many, many * 2
            elif many > 1:
                many //= 2
            else:
                at, many = self._one(at), 2
                if at < 0:
                    return self._finished()
        self._end(at)
        return self._finished()

    def _finished(self) -> Decoded:
        if self._values:
            self._found.batches.append(batch_of(self._values, json_lenient.told))
        return self._found

    def _one(self, at: int) -> int:
        """Read what begins at this seam, and give the seam where it ends; -1 where it ends with the piece."""
        begin = self._begins[at]
        for last in range(at, min(at + _NESTED, len(self._ends))):
            if not _is_incomplete(self._text[begin : self._ends[last]]):
                self._mend(begin, self._ends[last])
                return last + 1
        # No end in sight: it may be the last event, with seams within it.
        if at + _NESTED > len(self._ends) and self._end(at, only_if_read=True):
            return -1
        self._mend(begin, self._ends[at])
        return at + 1

    def _mend(self, begin: int, end: int) -> None:
        """The event between two seams, mended, or what else stands there; counted where it is beyond that."""
        text = self._text[begin:end]
        if not text.strip():
            return
        fixed, causes = mended(text)
        values, rest = _values(fixed.decode(), self._losses)
        self._losses.mended.update(causes)
        self._losses.add(UNREADABLE, 1 if rest else 0)
        self._values += values

    def _end(self, at: int, *, only_if_read: bool = False) -> bool:
        """Read from this seam to the end of the piece, unless that gives nothing."""
        trial = Losses()
        final = _final(self._text[self._begins[at] :], self._place, trial)
        if final is None and only_if_read:
            return False
        self._losses.merge(trial)
        if final is not None:
            self._values += final.values
            self._found.after, self._found.rest = final.after, final.rest
        return True


def _is_incomplete(text: bytes) -> bool:
    """Whether what begins here does not end here."""
    try:
        json.loads(text.strip() or b"0", strict=False)
    except json.JSONDecodeError as error:
        return error.pos >= len(error.doc) or error.msg.startswith("Unterminated string")
    except _REFUSED:
        return False
    return False


def _final(text: bytes, place: Place, losses: Losses) -> _Final | None:
    """The events at the end of a piece and what follows them; None, counted, where they cannot be read."""
    fixed, causes = mended(text)
    values, rest = _values(fixed.decode(), losses)
    if values or not rest:
        losses.mended.update(causes)
    if rest.startswith("]"):
        return _Final(values, rest.encode())
    if rest and place is Place.INNER:  # the cut was wrong, or the next piece will show that the event is
        return _Final(values, None, rest.encode())
    if rest:
        close = _END.search(rest.encode())
        losses.add(UNREADABLE if close else _UNENDED[place])
        if close:
            return _Final(values, rest.encode()[close.start(1) :])
        return _Final(values) if values else None
    if place is Place.LAST:  # within its events; how many came after is not known
        losses.lost[CUT_OFF] = 1
    return _Final(values)


def _values(text: str, losses: Losses) -> tuple[list[Value], str]:
    """The events at the beginning of a text, one after the other, and the text from where there is no more."""
    values: list[Value] = []
    at = _after_gap(text, 0)
    while at < len(text) and text[at] != "]":
        try:
            value, end = json_lenient.LENIENT.raw_decode(text, at)
        except _REFUSED:
            break
        at = _after_gap(text, end)
        if isinstance(value, dict) and "ph" in value:
            values.append(value)
        else:
            losses.add(UNREADABLE)
    return values, text[at:]


def _after_gap(text: str, at: int) -> int:
    """Where the next value begins: behind spaces and commas."""
    match = _GAP.search(text, at)
    return match.start() if match else len(text)


def metadata_after(after: bytes, bare: bool, losses: Losses) -> Header:
    """The metadata in the text that follows the events, from the bracket that ends them."""
    inside = after.strip().removeprefix(b"]").strip()
    if bare or inside == b"}":
        return NO_HEADER
    if inside.endswith(b"}"):
        inside = inside.removesuffix(b"}")
    else:  # the last of it may be half a number
        losses.lost[CUT_OFF] = 1
        inside = inside.rpartition(b",")[0]
    inside = inside.strip(b" \t\r\n,")
    head = header(b"{", (b"," + inside if inside else b"") + b"}")
    losses.add(METADATA, 1 if head is None else 0)
    return head or NO_HEADER
