"""The fast engine: msgspec, which builds only the fields that are asked for and skips the rest unbuilt.

Arguments that no event of a file has are not looked for in any: each costs a little in all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from gpulab.trace.columns.categories import CATEGORIES
from gpulab.trace.reading.batches import AS_TEXT, FIELDS, HEADER_KEYS, MEMORY, NAN, Batch, Header, How, Times

# All other phases of the Chrome format (flows, counters, ...) have no row.
_OTHER_PHASES = "BEICbnestfSTpFNODPvVRrc(),"
# msgspec's errors are ValueErrors, and so is bad UTF-8; Decimal has its own for an absurd exponent.
REFUSED = (ValueError, RecursionError, ArithmeticError)

_USUAL = (
    "correlation",
    "bytes",
    "device",
    "stream",
    "grid",
    "block",
    "registers per thread",
    "shared memory",
    "est. achieved occupancy %",
)
_OF_OPERATORS = ("Input Dims", "Input type")
_OF_COMMUNICATION = (
    *("Collective name", "dtype", "In msg nelems", "Out msg nelems"),
    *("Process Group Name", "Group size", "Seq"),
)
_OF_WAITS = ("wait_on_stream", "wait_on_cuda_event_record_corr_id")
_OF_MEMORY = ("Bytes", "Addr", "Device Id", "Device Type", "Total Allocated", "Total Reserved")


_CATEGORIES = ("", *CATEGORIES)
_TYPES: dict[Times, Any] = {Times.WHOLE: int, Times.FRACTIONS: float, Times.TEXT: Decimal}


class _Engine(NamedTuple):
    """Decoders, and what they make of events."""

    many: msgspec.json.Decoder[Any]
    ending: msgspec.json.Decoder[Any]
    work: Any
    instant: Any
    label: Any


_Metadata = msgspec.defstruct("_Metadata", [(key, Any, None) for key in HEADER_KEYS])


def inner(array: bytes | memoryview, how: How) -> Batch:
    """The events in a JSON array. Raises one of REFUSED where anything about it is not as it should be."""
    engine = _engine(how)
    return _batch(engine.many.decode(array), engine, how.times)


def ending(text: bytes | memoryview, how: How, bare: bool) -> tuple[Batch, Header]:
    """The events and the metadata of a last piece. Raises one of REFUSED."""
    whole = b"".join((b'{"traceEvents":[', text, b"}" if bare else b""))
    engine = _engine(how)
    found = engine.ending.decode(whole)
    return _batch(found.traceEvents, engine, how.times), _header(found)


def header(text: bytes) -> Header:
    """The metadata in a JSON object. Raises one of REFUSED."""
    return _header(msgspec.json.decode(text, type=_Metadata))


@functools.cache
def _engine(how: How) -> _Engine:
    """With times of this type (exactly as the text has them is a quarter slower), and with these seldom arguments."""
    seldom = ((how.shapes, _OF_OPERATORS), (how.collectives, _OF_COMMUNICATION), (how.waits, _OF_WAITS))
    keys = [*_USUAL, *(key for wanted, group in seldom if wanted for key in group)]
    text = ("name", "pid", "tid")
    category: Any = Literal[_CATEGORIES] if how.known else Any

    def phase(tag: str, fields: Sequence[str], timed: Sequence[str], args: Sequence[str]) -> Any:
        columns: list[Any] = [(field, Any, "") for field in fields]
        columns += [(field, _TYPES[how.times], NAN) for field in timed]
        columns += [("cat", category, "")] if tag == "X" else []
        columns += [("args", _arguments(tuple(args)) | None, None)] if args else []
        return msgspec.defstruct(f"Phase{ord(tag)}", columns, tag_field="ph", tag=tag, gc=False)

    work = phase("X", text, ("ts", "dur"), keys if how.args else ())
    instant = phase("i", text, ("ts",), _OF_MEMORY)
    label = phase("M", text, (), ("name",))
    event: Any = work | instant | label
    for other in _OTHER_PHASES:
        event = event | phase(other, (), (), ())
    whole = msgspec.defstruct("Ending", [("traceEvents", list[event])], bases=(_Metadata,), kw_only=True)
    return _Engine(msgspec.json.Decoder(list[event]), msgspec.json.Decoder(whole), work, instant, label)


@functools.cache
def _arguments(keys: tuple[str, ...]) -> Any:
    """The arguments of an event: as many fields as keys, and -1 or nothing where one is missing."""
    # A column that is all integers becomes an array at once; one with None in it does not.
    fields = [
        (_field(key), msgspec.Raw, msgspec.Raw())
        if key in AS_TEXT
        else (_field(key), Any, -1 if key in _USUAL else None)
        for key in keys
    ]
    return msgspec.defstruct("Arguments", fields, rename={_field(key): key for key in keys}, gc=False)


@functools.cache
def _field(key: str) -> str:
    return "_" + "".join(letter if letter.isalnum() else "_" for letter in key)


def _batch(events: Sequence[Any], engine: _Engine, times: Times) -> Batch:
    kind, instant, label = engine.work, engine.instant, engine.label
    work = [event for event in events if type(event) is kind]
    others = [] if len(work) == len(events) else [event for event in events if type(event) is not kind]
    return Batch(
        work,
        [event for event in others if type(event) is instant and event.name == MEMORY],
        [
            (event.pid, event.tid, event.args and event.args._name)
            for event in others
            if type(event) is label and event.name == "thread_name"
        ],
        _FIELDS,
        _told,
        times,
    )


_FIELDS = {name: attrgetter(name) for name in FIELDS}


def _header(found: Any) -> Header:
    return {key: getattr(found, key) for key in HEADER_KEYS}


def _told(events: Sequence[Any], keys: tuple[str, ...]) -> list[list[Any] | None]:
    """The values of these keys, one list each; see `Told`."""
    args = [event.args for event in events]
    kind = next((type(each) for each in args if each is not None), None)
    if kind is None:
        return [None] * len(keys)
    return [_values(args, key, kind()) for key in keys]


def _values(args: Sequence[Any], key: str, nothing: Any) -> list[Any] | None:
    field = _field(key)
    if not hasattr(nothing, field):  # not looked for: no event of this piece has it
        return None
    get = attrgetter(field)
    try:
        values = list(map(get, args))
    except AttributeError:  # an event without arguments
        values = [get(nothing if each is None else each) for each in args]
    return [bytes(value) or None for value in values] if key in AS_TEXT else values
