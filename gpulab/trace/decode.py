"""Pieces of text -> events. What msgspec refuses is mended; if that fails, read event by event; if that, counted."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from gpulab.trace.cut import Place, seams
from gpulab.trace.events import NAN, Header, decoders, from_mapping
from gpulab.trace.limits import CUT_OFF, METADATA, TOO_LARGE, UNREADABLE, Losses
from gpulab.trace.mend import mended

Events = list[Any]  # Work or ExactWork, Label, and empty objects of other phases
# msgspec's and json's errors are ValueErrors, and so is bad UTF-8; Decimal has its own for an absurd exponent.
_REFUSED = (ValueError, RecursionError, ArithmeticError)
# Old Pythons take minutes for an integer of a million digits.
_LENIENT = json.JSONDecoder(
    strict=False,
    parse_float=Decimal,
    parse_int=lambda digits: int(digits) if len(digits) < 40 else NAN,
    parse_constant=lambda _: NAN,
)
_GAP = re.compile(r"[^\s,]|\Z")
_END = re.compile(rb"\}\s*(\](?:\s*,\s*\"|\s*\}?\s*\Z))")

# What has happened to an event that does not end within its piece.
_UNENDED = {Place.STUCK: TOO_LARGE, Place.LAST: CUT_OFF}
_INCOMPLETE = object()
_NESTED = 8  # seams within one event that are recognised as such


class Decoded(NamedTuple):
    """The events of a piece; the text after the last event of the file; the text of an event cut in two."""

    events: Events
    after: bytes | None = None
    rest: bytes = b""


def inner(text: bytes | memoryview, exact: bool) -> Events | None:
    """The events of a sound piece; None where anything about it is not as it should be."""
    try:
        events: Events = decoders(exact).many.decode(b"".join((b"[", text, b"]")))
    except _REFUSED:
        return None
    return events


def ending(text: bytes | memoryview, exact: bool, bare: bool) -> tuple[Events, Header] | None:
    """The events and the metadata of a sound last piece; None where anything about it is not as it should be."""
    try:
        result = decoders(exact).ending.decode(b"".join((b'{"traceEvents":[', text, b"}" if bare else b"")))
    except _REFUSED:
        return None
    return result.traceEvents, result


def header(before: bytes, after: bytes) -> Header | None:
    """The metadata around the events; None where it is not JSON even when mended."""
    text = before + b'"traceEvents":[]' + after
    try:
        return msgspec.json.decode(text, type=Header)
    except _REFUSED:
        text = mended(text)[0]
    try:
        return msgspec.json.decode(text, type=Header)
    except _REFUSED:
        return None


def damaged(text: bytes, key: bytes, place: Place, losses: Losses) -> Decoded:
    """All that can be read of a piece that is not sound, with exact times; the rest is counted."""
    whole, causes = mended(text)
    if (sound := inner(whole, exact=True)) is not None and place is not Place.LAST:
        losses.mended.update(causes)
        return Decoded(sound)
    cuts = [match.span() for match in seams(key).finditer(text)]
    events: Events = []
    begin = index = 0
    while True:
        event, last = _INCOMPLETE, index
        for last in range(index, min(index + _NESTED, len(cuts))):
            event = _sound_event(text[begin : cuts[last][0]])
            if event is not _INCOMPLETE:
                break
        if event is _INCOMPLETE and index + _NESTED > len(cuts):  # it may reach to the end of the piece
            trial = Losses()
            final = _final_events(text[begin:], place, trial)
            if final is not None or index == len(cuts):
                losses.merge(trial)
                return Decoded(events) if final is None else final._replace(events=[*events, *final.events])
        if event is _INCOMPLETE or event is None:
            events += _mended_events(text[begin : cuts[index][0]], losses)
            last = index
        else:
            events.append(event)
        begin, index = cuts[last][1], last + 1


def _sound_event(text: bytes) -> Any:
    """One event; None where it is damaged, _INCOMPLETE where its end is missing."""
    try:
        return decoders(exact=True).one.decode(text)
    except _REFUSED as error:
        return _INCOMPLETE if "truncated" in str(error) else None


def _mended_events(text: bytes, losses: Losses) -> Events:
    """The event between two seams, mended, or what else stands there; counted where it is beyond that."""
    if not text.strip():
        return []
    fixed, causes = mended(text)
    losses.mended.update(causes)
    try:
        return [decoders(exact=True).one.decode(fixed)]
    except _REFUSED:
        pass
    # Not of the types expected, a number beyond float64, something that is no event, ...
    events, rest = _values(fixed.decode(), losses)
    losses.add(UNREADABLE, 1 if rest else 0)
    return events


def _final_events(text: bytes, place: Place, losses: Losses) -> Decoded | None:
    """The event at the end of a piece and what follows it; None, counted, where it cannot be read."""
    fixed, causes = mended(text)
    events, rest = _values(fixed.decode(), losses)
    if events or not rest:
        losses.mended.update(causes)
    if rest.startswith("]"):
        return Decoded(events, rest.encode())
    if rest and place is Place.INNER:  # the cut was wrong, or the next piece will show that the event is
        return Decoded(events, None, rest.encode())
    if rest:
        close = _END.search(rest.encode())
        losses.add(UNREADABLE if close else _UNENDED[place])
        if close:
            return Decoded(events, rest.encode()[close.start(1) :])
        return Decoded(events) if events else None
    if place is Place.LAST:  # within its events; how many came after is not known
        losses.lost[CUT_OFF] = 1
    return Decoded(events)


def _values(text: str, losses: Losses) -> tuple[Events, str]:
    """The events at the beginning of a text, one after the other, and the text from where there is no more."""
    events: Events = []
    at = _after_gap(text, 0)
    while at < len(text) and text[at] != "]":
        try:
            value, end = _LENIENT.raw_decode(text, at)
        except _REFUSED:
            break
        at = _after_gap(text, end)
        if not isinstance(value, dict) or "ph" not in value:
            losses.add(UNREADABLE)
        elif (event := from_mapping(value)) is not None:
            events.append(event)
    return events, text[at:]


def _after_gap(text: str, at: int) -> int:
    """Where the next value begins: behind spaces and commas."""
    match = _GAP.search(text, at)
    return match.start() if match else len(text)


def metadata_after(after: bytes, bare: bool, losses: Losses) -> Header:
    """The metadata in the text that follows the events, from the bracket that ends them."""
    inside = after.strip().removeprefix(b"]").strip()
    if bare or inside == b"}":
        return Header()
    if inside.endswith(b"}"):
        inside = inside.removesuffix(b"}")
    else:  # the last of it may be half a number
        losses.lost[CUT_OFF] = 1
        inside = inside.rpartition(b",")[0]
    inside = inside.strip(b" \t\r\n,")
    head = header(b"{", (b"," + inside if inside else b"") + b"}")
    losses.add(METADATA, 1 if head is None else 0)
    return head or Header()
