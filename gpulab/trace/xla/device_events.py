"""What the events of an XLA trace are: kernels, copies, memsets, calls, Python frames, annotations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpulab.tables import EventKind
from gpulab.trace.columns.categories import EventFamily, kind_of
from gpulab.trace.columns.times import parse_count
from gpulab.trace.xla.document import Event

_COPY = re.compile(r"Memcpy(?:(H2D|D2H|D2D|P2P|H2H)|\w*)?")
_DIRECTIONS = {"H2D": "HtoD", "D2H": "DtoH", "D2D": "DtoD", "P2P": "PtoP", "H2H": "HtoH"}
_MEMORY_KINDS = {"pageable": "Pageable", "pinned": "Pinned", "device": "Device", "managed": "Managed", "array": "Array"}
_DETAIL = re.compile(r"(\w+):\s*([\w.,-]+)")  # "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
_CALL = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*$")
_NOT_WORK = ("memalloc_details", "MemFree_details", "MemoryResidency_details")  # on stream lanes, but no work
PYTHON_FRAME = "$"  # begins the names of Python frames: "$train.py:12 step"


class StreamWork(NamedTuple):
    """A piece of device work. Absent values are -1."""

    kind: EventKind
    name: str
    bytes: int
    correlation: int
    grid: int
    block: int
    registers: int
    shared_bytes: int
    occupancy_frac: float


def stream_work(event: Event) -> StreamWork | None:
    """The device work that an event on a stream is; None if it is none."""
    args = event.args
    if any(detail in args for detail in _NOT_WORK):
        return None
    kernel = _details(args.get("kernel_details"))
    copy = _details(args.get("memcpy_details"))
    memset = _details(args.get("Memset_details", args.get("memset_details")))
    kind, name = _kind_and_name(event, copy)
    shared = [parse_count(kernel.get(key)) for key in ("static_shared", "dynamic_shared")]
    return StreamWork(
        kind=kind,
        name=name,
        bytes=parse_count((copy or memset).get("size")),
        correlation=correlation(args),
        grid=_product(kernel.get("grid")),
        block=_product(kernel.get("block")),
        registers=parse_count(kernel.get("regs")),
        shared_bytes=sum(shared) if min(shared) >= 0 else -1,
        occupancy_frac=_fraction(kernel.get("occ_pct")),
    )


def host_kind(event: Event) -> EventKind:
    """The kind of an event on a thread of the host."""
    if event.name.startswith(PYTHON_FRAME):
        return EventKind.PYTHON
    if _CALL.match(event.name):
        return kind_of(EventFamily.RUNTIME, event.name)
    return EventKind.ANNOTATION


def correlation(args: Mapping[str, Any]) -> int:
    """The number that links a call to the work that it started; -1 if there is none."""
    number = parse_count(args.get("correlation_id"))
    return number if number > 0 else -1


def _kind_and_name(event: Event, copy: Mapping[str, str]) -> tuple[EventKind, str]:
    match = _COPY.fullmatch(event.name)
    if match is not None or copy:
        direction = _DIRECTIONS.get(match[1] or "") if match else None
        return EventKind.MEMCPY, f"Memcpy {direction}{_memory(copy)}" if direction else event.name
    if event.name.startswith("Memset"):
        return EventKind.MEMSET, "Memset (Device)" if event.name == "Memset" else event.name
    return kind_of(EventFamily.KERNEL, event.name), event.name


def _memory(copy: Mapping[str, str]) -> str:
    """Kinds of memory in Kineto's words: " (Pageable -> Device)"; "" if unknown."""
    ends = [_MEMORY_KINDS.get(copy.get(key, "").lower()) for key in ("kind_src", "kind_dst")]
    return f" ({ends[0]} -> {ends[1]})" if all(ends) else ""


def _details(text: Any) -> dict[str, str]:
    return dict(_DETAIL.findall(text[:1000])) if isinstance(text, str) else {}


def _product(text: str | None) -> int:
    factors = [parse_count(part) for part in (text or "").split(",")]
    return math.prod(factors) if min(factors) >= 0 and math.prod(factors) < 2**62 else -1


def _fraction(text: str | None) -> float:
    try:
        percentage = float(text or "nan")
    except ValueError:
        return math.nan
    return percentage / 100 if 0 <= percentage <= 100 else math.nan
