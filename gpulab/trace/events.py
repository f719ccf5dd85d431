"""What of a trace's JSON becomes Python objects: as little as ends in a column. msgspec skips the rest unbuilt."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

NAN = float("nan")
# All other phases of the Chrome format (flows, instants, counters, ...) have no row in the events table.
_OTHER_PHASES = "BEIiCbnestfSTpFNODPvVRrc(),"


class Args(msgspec.Struct, gc=False):
    """The arguments that end in a column, whatever type they were written in; and a thread's name."""

    stream: Any = -1
    device: Any = -1
    correlation: Any = -1
    bytes: Any = -1
    grid: Any = ()
    block: Any = ()
    occupancy: Any = msgspec.field(default=NAN, name="est. achieved occupancy %")
    name: Any = None


class Work(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """Something that began and took a time, in µs."""

    name: Any = ""
    cat: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = NAN
    dur: Any = NAN
    args: Args | None = None


class ExactWork(Work, tag_field="ph", tag="X", gc=False):
    """The same, with times as the text has them: for times too large for a float64 to be exact to the ns."""

    ts: Decimal = Decimal("NaN")
    dur: Decimal = Decimal("NaN")


class Label(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """The name of a thread or a process."""

    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    args: Args | None = None


class Header(msgspec.Struct):
    """What stands beside the events."""

    traceEvents: list[Any] | None = None  # noqa: N815  (the format's own names)
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    host_name: Any = None
    cuda_runtime_version: Any = None
    cuda_driver_version: Any = None
    hip_runtime_version: Any = None
    record_shapes: Any = None
    profile_memory: Any = None
    with_stack: Any = None
    with_flops: Any = None
    with_modules: Any = None


class Decoders(NamedTuple):
    """msgspec's decoders: for many events, for one, for events with what follows them."""

    many: msgspec.json.Decoder[Any]
    one: msgspec.json.Decoder[Any]
    ending: msgspec.json.Decoder[Any]


@functools.cache
def decoders(exact: bool) -> Decoders:
    """The decoders with times as float64, or exactly as the text has them (twice as slow)."""
    others = [
        msgspec.defstruct(f"Phase{index}", [], tag_field="ph", tag=phase, gc=False)
        for index, phase in enumerate(_OTHER_PHASES)
    ]
    event: Any = ExactWork if exact else Work
    for other in (Label, *others):
        event = event | other
    ending = msgspec.defstruct("Ending", [("traceEvents", list[event])], bases=(Header,))
    return Decoders(msgspec.json.Decoder(list[event]), msgspec.json.Decoder(event), msgspec.json.Decoder(ending))


def from_mapping(value: Mapping[str, Any]) -> ExactWork | Label | None:
    """An event from a plain JSON object; None where it is of a phase without a row."""
    phase = value.get("ph")
    args = value.get("args")
    known = {name: args[key] for name, key in _ARGS.items() if key in args} if isinstance(args, dict) else {}
    wanted = {field: value[field] for field in Work.__struct_fields__ if field != "args" and field in value}
    if phase == "X":
        return ExactWork(**wanted, args=Args(**known))
    if phase == "M":
        return Label(**{key: wanted[key] for key in ("name", "pid", "tid") if key in wanted}, args=Args(**known))
    return None


_ARGS = dict(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
