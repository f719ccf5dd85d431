"""Decode the JSON of a trace to events; msgspec builds only the required fields and skips the rest."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

from gpulab.deferred_signals import DeferredSignals
from gpulab.trace.columns.categories import CATEGORIES
from gpulab.trace.columns.side_tables import MEMORY_ARGUMENTS, ArgumentReader
from gpulab.trace.reading.chunk_events import HEADER_KEYS, READ_EVERYTHING, Batch, Header, ReadOptions

# Invalid UTF-8 is a ValueError; Decimal raises ArithmeticError for an absurd exponent.
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError)

_OTHER_PHASES = "BEICbnestfSTpFNODPvVRrc(),"  # other phases of the Chrome format (flows, counters, ...), not used here
_MEMORY = "[memory]"  # name of an allocation or a free
_NAN = float("nan")  # no time
_Metadata = msgspec.defstruct("_Metadata", [(key, Any, None) for key in HEADER_KEYS])
_Ending: Any = msgspec.defstruct("_Ending", [("traceEvents", Any, None)], bases=(_Metadata,))
_ENDING = msgspec.json.Decoder(_Ending)


class _Phase(NamedTuple):
    """Types of the events of a phase and of their arguments."""

    tag: str
    event: Any
    args: Any
    readings: Mapping[str, ArgumentReader]  # of the arguments, by field


class _Types(NamedTuple):
    """Types of events for one set of options, and the decoders that build them."""

    work: _Phase
    instant: _Phase
    label: _Phase
    events: msgspec.json.Decoder[Any]
    ending: msgspec.json.Decoder[Any]


def parse_events(array: bytes | memoryview, options: ReadOptions) -> Batch | None:
    """Events in a JSON array; None if anything is not as expected."""
    types = _types_for(options)
    try:
        return _batch(types.events.decode(array), types)
    except DECODE_ERRORS:
        return None


def parse_last_chunk(text: bytes | memoryview, options: ReadOptions, is_array: bool) -> tuple[Batch, Header] | None:
    """Events and metadata of the last chunk; None if anything is not as expected."""
    types = _types_for(options)
    try:
        document = types.ending.decode(b"".join((b'{"traceEvents":[', text, b"}" if is_array else b"")))
    except DECODE_ERRORS:
        return None
    return _batch(document.traceEvents, types), _header(document)


def parse_header(text: bytes) -> Header | None:
    """Metadata in a JSON object; None if it is not JSON."""
    try:
        return _header(msgspec.json.decode(text, type=_Metadata))
    except DECODE_ERRORS:
        return None


def parse_ending(text: bytes | memoryview, is_array: bool) -> Header | None:
    """Metadata in the end of a file, from the bracket after its events; None if anything is not as expected."""
    try:
        document = _ENDING.decode(b"".join((b'{"traceEvents":["read"', text, b"}" if is_array else b"")))
    except DECODE_ERRORS:
        return None
    return _header(document) if document.traceEvents == ["read"] else None  # a second list would replace the first


def batch_from_values(values: Iterable[Mapping[str, Any]]) -> Batch:
    """Batch of events from another parser, whatever types their fields have."""
    types = _types_for(READ_EVERYTHING)
    phases = (types.work, types.instant, types.label)
    return _batch([_event(phase, value) for value in values for phase in phases if value["ph"] == phase.tag], types)


def _event(phase: _Phase, value: Mapping[str, Any]) -> Any:
    fields = {name: value[name] for name in phase.event.__struct_fields__ if name in value}
    args = fields.pop("args", None)
    if isinstance(args, dict):
        fields["args"] = phase.args(
            **{
                field: msgspec.Raw(json.dumps(args[key], default=str)) if is_json else args[key]
                for field, (key, _, is_json) in phase.readings.items()
                if key in args
            }
        )
    return phase.event(**fields)


@functools.cache
def _types_for(options: ReadOptions) -> _Types:
    with DeferredSignals(again=True):  # msgspec drops an exception of a signal handler while it looks up a type
        return _new_types(options)


def _new_types(options: ReadOptions) -> _Types:
    time: Any = (Decimal if options.exact_times else int | float, _NAN)
    category: Any = (Literal[("", *CATEGORIES)] if options.known_categories_only else Any, "")
    texts: dict[str, Any] = dict.fromkeys(("name", "pid", "tid"), (Any, ""))
    readings = {field: reading for side in options.side_tables for field, reading in side.readings.items()}
    work = _phase("X", {"cat": category, **texts, "ts": time, "dur": time}, readings)  # in the order of Kineto: faster
    instant = _phase("i", {**texts, "ts": time}, MEMORY_ARGUMENTS.readings)
    label = _phase("M", texts, {"name": ArgumentReader("name")})
    event: Any = work.event | instant.event | label.event
    for tag in _OTHER_PHASES:
        event |= msgspec.defstruct(f"Phase{ord(tag)}", [], tag_field="ph", tag=tag, gc=False)
    ending = msgspec.defstruct("Ending", [("traceEvents", list[event])], bases=(_Metadata,), kw_only=True)
    return _Types(work, instant, label, msgspec.json.Decoder(list[event]), msgspec.json.Decoder(ending))


def _phase(tag: str, fields: Mapping[str, tuple[Any, Any]], readings: Mapping[str, ArgumentReader]) -> _Phase:
    columns = [(field, kind, default) for field, (kind, default) in fields.items()]
    args = _arguments(readings)
    if readings:
        columns.append(("args", args, args()))
    event = msgspec.defstruct(f"Phase{ord(tag)}", columns, tag_field="ph", tag=tag, gc=False)
    return _Phase(tag, event, args, readings)


def _arguments(readings: Mapping[str, ArgumentReader]) -> Any:
    """Type of the arguments: one field each, with -1, None or an empty text as default."""
    # A list of integers converts to an array quickly; a list with None does not.
    fields: list[Any] = [
        (field, msgspec.Raw, msgspec.Raw()) if reading.json else (field, Any, None if reading.read is None else -1)
        for field, reading in readings.items()
    ]
    rename = {field: reading.key for field, reading in readings.items()}
    return msgspec.defstruct("Arguments", fields, rename=rename, gc=False, frozen=True)


def _batch(events: Sequence[Any], types: _Types) -> Batch:
    kind, instant, label = types.work.event, types.instant.event, types.label.event
    kinds = list(map(type, events))
    count = kinds.count(kind)  # in the chunks of most traces all events are work, or none
    if count == len(events):
        return Batch(list(events), [], [])
    others = [event for event in events if type(event) is not kind]
    return Batch(
        [event for event in events if type(event) is kind] if count else [],
        [event for event in others if type(event) is instant and event.name == _MEMORY],
        [event for event in others if type(event) is label and event.name == "thread_name"],
    )


def _header(metadata: Any) -> Header:
    return {key: getattr(metadata, key) for key in HEADER_KEYS}
