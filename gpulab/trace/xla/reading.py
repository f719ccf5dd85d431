"""Read a trace of JAX's profiler as a run: a timeline of the device, the host's threads, and steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpulab.errors import TraceError
from gpulab.intervals import Ints
from gpulab.rows import Array
from gpulab.run import TRACED_WORK, Gap, Run
from gpulab.run_facts import NOT_RECORDED, OPERATORS
from gpulab.tables import EventKind
from gpulab.trace.assembly import assemble_run
from gpulab.trace.columns.event_arrays import EventArrays, build_tables
from gpulab.trace.columns.times import MISSING, nanoseconds_from_numbers
from gpulab.trace.columns.vocabulary import Vocabulary
from gpulab.trace.reading.chunk_events import NO_HEADER
from gpulab.trace.reading.limits import Limits, Losses
from gpulab.trace.reading.text_blocks import Progress
from gpulab.trace.xla.device_events import correlation, host_kind, stream_work
from gpulab.trace.xla.document import FIX, Event, XlaEvents, XlaLane, read_document, starts_like_xla
from gpulab.trace.xla.steps import annotated_steps, device_steps

FRAMEWORK, PROFILER = "JAX", "JAX profiler"
_GPU = re.compile(r"/device:GPU:(\d+)")
_STREAM = re.compile(r"Stream #(\d+)")
_HOST = "/host:CPU"
_STEP_LANE = "steps of the device"
_NOT_PYTORCH = Gap(
    what="the causes of idle time",
    why="the program is of JAX, and gpulab's rules and fixes are for PyTorch",
    fix="",
)
_NO_GPU = Gap(
    what=f"{TRACED_WORK} of the program",
    why="the trace of JAX contains no GPU work, and XLA computes on CPU threads of its own",
    fix="run the program on a GPU",
)


def is_xla_trace(path: Path) -> bool:
    """Whether the file begins like a trace of JAX's profiler."""
    return starts_like_xla(path)


def read_xla(path: Path, *, limits: Limits | None = None, progress: Progress | None = None) -> Run:
    """Read a trace of JAX's profiler. Raises TraceError if it has no event, or is of a TPU.

    Device work is what the streams of the GPUs contain. The steps are those that XLA found on the device; else the
    executions of the module that takes the most time; else those that the program annotated. Without a GPU, the run has
    the host's events but neither steps nor a recorded window: XLA computes on threads of its own, so the time of the
    calls says nothing about the time of a step.
    """
    losses = Losses()
    document = read_document(path, limits or Limits(), losses, progress)
    gpus = _gpus(document.lanes.values())
    if not gpus and any(lane.process.startswith("/device:TPU") for lane in document.lanes.values()):
        raise TraceError(f"{path} is a trace of a TPU.", why="gpulab reads traces of GPUs", fix="open it in XProf")
    names, threads = Vocabulary(), list[str]()
    work, device_part = _device_part(document, gpus, names)
    busiest = max(gpus, key=lambda process: work[process], default=None)
    steps = device_steps(document.events, document.lanes, busiest) if busiest else []
    host_part = _host_part(document, names, threads, linked=not steps)
    if busiest and not steps and (host_part.columns["correlation"] >= 0).any():
        steps = annotated_steps(document.events)  # calls are linked to the work, so the steps of the GPU can be found
    parts = [device_part, host_part, _step_part(steps, names, threads)]
    tables = build_tables(parts, names, threads, losses)
    if not len(tables.rows):
        raise TraceError(f"{path} has no events.", why="no work was recorded in this trace of JAX", fix=FIX)
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trace") or path.name
    run = assemble_run(name, tables, {**NO_HEADER, "host_name": name}, losses)
    recording = replace(run.recording, left_out=(*run.recording.left_out, _NOT_PYTORCH if busiest else _NO_GPU))
    if not busiest:
        recording = replace(recording, windows_ns=())
    facts = {**run.facts, "framework": FRAMEWORK, "profiler": PROFILER, OPERATORS: NOT_RECORDED}
    return replace(run, recording=recording, facts=facts)


def _gpus(lanes: Iterable[XlaLane]) -> dict[str, int]:
    """The GPUs' processes, and their numbers."""
    matches = {lane.process: _GPU.match(lane.process) for lane in lanes}
    return {process: int(match[1]) for process, match in matches.items() if match}


def _device_part(document: XlaEvents, gpus: Mapping[str, int], names: Vocabulary) -> tuple[Counter[str], EventArrays]:
    """Time of the work on each GPU, in us, and all device work."""
    totals: Counter[str] = Counter()
    events, work, devices, streams = [], [], [], []
    for event in document.events:
        lane = document.lanes[event.pid, event.tid]
        stream = _STREAM.match(lane.thread)
        if lane.process in gpus and stream and (piece := stream_work(event)) is not None:
            totals[lane.process] += int(event.dur)
            events.append(event)
            work.append(piece)
            devices.append(gpus[lane.process])
            streams.append(int(stream[1]))
    columns: dict[str, Array] = {
        **_times(events),
        "kind": np.array([piece.kind.value for piece in work], np.int8),
        "name": names.codes([piece.name for piece in work], len(work)),
        "device": np.array(devices, np.int64),
        "stream": np.array(streams, np.int64),
        "correlation": np.array([piece.correlation for piece in work], np.int64),
        "bytes": np.array([piece.bytes for piece in work], np.int64),
    }
    grids: dict[str, Array] = {
        key: np.array([getattr(piece, key) for piece in work], np.int64)
        for key in ("grid", "block", "registers", "shared_bytes")
    }
    grids["occupancy_frac"] = np.array([piece.occupancy_frac for piece in work], np.float32)
    return totals, EventArrays(columns, grids)


def _host_part(document: XlaEvents, names: Vocabulary, threads: list[str], *, linked: bool) -> EventArrays:
    """Events of the host's threads.

    `linked`: whether calls keep the number of the work that they start. Steps of the device already contain the work
    of a step; the calls of that step came earlier, if the host runs ahead, and must not move it again.
    """
    numbers: dict[tuple[int, int], int] = {}
    events = [event for event in document.events if document.lanes[event.pid, event.tid].process == _HOST]
    codes = [numbers.setdefault((event.pid, event.tid), len(numbers)) for event in events]
    threads += [document.lanes[key].thread for key in numbers]
    ids = [correlation(event.args) if linked else -1 for event in events]
    return EventArrays(
        {
            **_times(events),
            "kind": np.array([host_kind(event).value for event in events], np.int8),
            "name": names.codes([event.name for event in events], len(events)),
            "thread": np.array(codes, np.int32),
            "correlation": np.array(ids, np.int64),
        }
    )


def _step_part(steps: Sequence[Event], names: Vocabulary, threads: list[str]) -> EventArrays:
    """The steps, on a thread of their own: they are not calls of any thread."""
    if steps:
        threads.append(_STEP_LANE)
    return EventArrays(
        {
            **_times(steps),
            "kind": np.full(len(steps), EventKind.STEP.value, np.int8),
            "name": names.codes([event.name for event in steps], len(steps)),
            "thread": np.full(len(steps), len(threads) - 1, np.int32),
        }
    )


def _times(events: Sequence[Event]) -> dict[str, Array]:
    return {
        "start_ns": _nanoseconds([event.ts or 0.0 for event in events]),
        "dur_ns": _nanoseconds([event.dur for event in events]),
    }


def _nanoseconds(times_us: Sequence[float]) -> Ints:
    exact = nanoseconds_from_numbers(times_us)
    # Beyond the exact range no trace of XLA has times: they count from the start of the recording.
    return np.full(len(times_us), MISSING) if exact is None else exact
