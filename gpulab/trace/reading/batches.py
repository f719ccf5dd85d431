"""What of a trace's JSON is looked at, and in what form an engine hands it to the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

# Events -> for each key of their arguments one value per event, None or -1 where an event has no such argument;
# None for a key that none of them has.
Told = Callable[[Sequence[Any], tuple[str, ...]], list[list[Any] | None]]

# What stands beside the events, by the format's own names; None where a file does not tell.
Header = Mapping[str, Any]
HEADER_KEYS = (
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "host_name",
    "cuda_runtime_version",
    "cuda_driver_version",
    "hip_runtime_version",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
)
NO_HEADER: Header = dict.fromkeys(HEADER_KEYS)

# Arguments that are given as the JSON text they were written in: long, seldom looked into, and mostly the same.
AS_TEXT = frozenset(("Input Dims", "Input type"))


class Times(Enum):
    """What times are, in us: an engine promises it of every time of a batch, but for missing ones (NaN)."""

    WHOLE = "int"
    FRACTIONS = "float"
    TEXT = "anything: Decimal, where the text is a number"


class How(NamedTuple):
    """How closely a piece is read. What a file turns out not to need costs nothing."""

    times: Times = Times.WHOLE
    shapes: bool = False  # the inputs of operators
    collectives: bool = False  # what is told of communication
    waits: bool = False  # what is told of synchronisation
    args: bool = True  # arguments at all: of Python frames and bare operators nobody asks
    known: bool = True  # all categories are ones that gpulab knows: those need not be made anew for each event


# The fields of an event that has a duration, and what stands for one that is missing. NaN is no time.
NAN = float("nan")
FIELDS: Mapping[str, Any] = {"name": "", "cat": "", "pid": "", "tid": "", "ts": NAN, "dur": NAN, "args": None}
MEMORY = "[memory]"  # the name of an instant at which memory was given out or taken back


class Batch(NamedTuple):
    """The events of a piece, in a form that only its engine knows; times in us, as the text has them.

    Columns are made of events without lists in between: `map(batch.get["ts"], batch.work)`.
    """

    work: Sequence[Any]  # events that have a duration
    memory: Sequence[Any]  # instants at which memory was given out or taken back
    labels: list[tuple[Any, Any, Any]]  # pid, tid and name of a thread
    get: Mapping[str, Callable[[Any], Any]]  # a field of an event
    told: Told  # the arguments of some events
    times: Times


def batch_of(values: Sequence[Mapping[str, Any]], told: Told) -> Batch:
    """A batch from plain JSON objects, each an event; phases without a row are passed over."""
    return Batch(
        [value for value in values if value.get("ph") == "X"],
        [value for value in values if value.get("ph") == "i" and value.get("name") == MEMORY],
        [
            (value.get("pid", ""), value.get("tid", ""), _name(value.get("args")))
            for value in values
            if value.get("ph") == "M" and value.get("name") == "thread_name"
        ],
        _FROM_MAPPING,
        told,
        Times.TEXT,
    )


def _field(name: str, missing: Any) -> Callable[[Any], Any]:
    return lambda value: value.get(name, missing)


_FROM_MAPPING = {name: _field(name, missing) for name, missing in FIELDS.items()}


def _name(args: Any) -> Any:
    return args.get("name") if isinstance(args, dict) else None
