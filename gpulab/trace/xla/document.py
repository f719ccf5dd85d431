"""The JSON of an XLA trace: its events, and the names of its processes and threads.

Chrome's format: processes are named /device:GPU:0, /host:CPU, ...; threads of a device are streams ("Stream
#13(Compute)") and summaries of them ("XLA Ops", "XLA Modules", "Steps").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gpulab.errors import TraceError
from gpulab.trace.reading.limits import CUT_OFF, EVENT_LIMIT, UNREADABLE, Limits, Losses
from gpulab.trace.reading.text_blocks import Progress, read_blocks

FIX = "use the HOST.trace.json.gz that jax.profiler.trace wrote to plugins/profile/DATE"
_START_BYTES = 64 * 1024  # the names of the processes come first
_PROCESS = re.compile(rb'"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:host:CPU|device:[A-Z]+:\d+)')
_BETWEEN_EVENTS = b"},{"


class Event(msgspec.Struct):
    """An event of the trace. Times are in us."""

    ph: str = ""
    name: str = ""
    pid: int = -1
    tid: int = -1
    ts: float | None = None
    dur: float = 0.0
    args: dict[str, Any] = {}


class _Document(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815, the name in the file


class XlaLane(NamedTuple):
    """A thread of a process."""

    process: str  # "/device:GPU:0"
    thread: str  # "Stream #13(Compute)"


class XlaEvents(NamedTuple):
    """Events with a duration, and the lane of each pair of process and thread."""

    events: list[Event]
    lanes: Mapping[tuple[int, int], XlaLane]


def starts_like_xla(path: Path) -> bool:
    """Whether the file begins like a trace of XLA: it names a process /host:CPU or /device:..., as Kineto does not."""
    try:
        for block in read_blocks(path, Limits(text_bytes=2**22), Losses()):
            start = block[:_START_BYTES]
            return b"traceEvents" in start and b"process_name" in start and _PROCESS.search(start) is not None
    except TraceError:
        pass
    return False


def read_document(path: Path, limits: Limits, losses: Losses, progress: Progress | None) -> XlaEvents:
    """All events and names. A damaged end costs the events there. Raises TraceError if nothing can be read."""
    text = b"".join(read_blocks(path, limits, losses, progress))
    events = _decoded(text)
    if events is None:
        end = text.rfind(_BETWEEN_EVENTS)
        events = _decoded(text[: end + 1] + b"]}") if end > 0 else None
        losses.add(CUT_OFF if events is not None else UNREADABLE)
    if events is None:
        raise TraceError(f"{path} is a damaged trace of JAX.", why="its JSON cannot be read", fix=FIX)
    if len(events) > limits.events:
        losses.add(EVENT_LIMIT, len(events) - limits.events)
        events = events[: limits.events]
    return XlaEvents([event for event in events if event.ph == "X" and event.ts is not None], _lanes(events))


def _decoded(text: bytes) -> list[Event] | None:
    try:
        return msgspec.json.decode(text, type=_Document, strict=False).traceEvents
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _lanes(events: list[Event]) -> dict[tuple[int, int], XlaLane]:
    processes = dict(_names(events, "process_name"))
    threads = dict(_names(events, "thread_name"))
    keys = {(event.pid, event.tid) for event in events if event.ph == "X"}
    names = {pid: name for (pid, _), name in processes.items()}
    return {key: XlaLane(names.get(key[0], ""), threads.get(key, f"thread {key[1]}")) for key in keys}


def _names(events: list[Event], label: str) -> Iterator[tuple[tuple[int, int], str]]:
    for event in events:
        if event.ph == "M" and event.name == label:
            yield (event.pid, event.tid), str(event.args.get("name", ""))[:200]
