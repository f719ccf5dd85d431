"""The host track of a run: the calls that matter, and the host work before each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import DeviceWork, device_work
from gpulab.analysis.host.launch_delays import launch_calls
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import host_parts, launching_threads
from gpulab.intervals import Coverage, Ints, Spans, union
from gpulab.replay.graph.cpu_exchanges import exchange_calls, exchanges
from gpulab.replay.graph.graph import NONE, Floats, NodeKind
from gpulab.run import Run
from gpulab.tables import EventKind

_STOPS = {EventKind.COPY_CALL: NodeKind.COPY_CALL, EventKind.SYNC: NodeKind.SYNC, EventKind.ALLOC: NodeKind.ALLOC}


@dataclass(frozen=True, eq=False)
class HostTrack:
    """Host nodes in order of time, as recorded, and the device ops that each launches."""

    kind: Ints
    event: Ints
    at_ns: Ints
    dur_ns: Ints
    before_ns: Mapping[str, Floats]
    step_first: Ints
    step_last: Ints
    work: DeviceWork  # device ops in launch order
    call: Ints  # the host node that launched each, or -1
    first: Ints
    part_spans: Mapping[str, Spans]
    concurrent_calls_ns: int

    @property
    def end_ns(self) -> Ints:
        """Recorded end of each node."""
        return self.at_ns + self.dur_ns


def build_host_track(run: Run, steps: Steps, device: str) -> HostTrack:
    """Return the host track of a run whose device is "gpu" or "cpu"."""
    steps = steps.host_steps
    work, caller = _device_work_and_calls(run, device)
    calls = _calls(run, caller)
    marks = _marks(run, steps, calls)
    spans = host_parts(run, _window(run, calls, marks), device)
    points = _points(spans, device)
    events = run.event_rows
    event = np.concatenate([np.full(len(marks) + len(points), NONE), calls])
    stop = np.concatenate(
        [np.full(len(marks), NodeKind.MARK), np.full(len(points), NodeKind.POINT), _node_kinds(run, calls)]
    )
    at = np.concatenate([marks, points, events["start_ns"][calls]]).astype(np.int64)
    dur = np.concatenate([np.zeros(len(marks) + len(points), np.int64), events["dur_ns"][calls]])
    order = np.lexsort((-dur, stop, at))
    event, stop, at, dur = event[order], stop[order], at[order], dur[order]
    marked = np.flatnonzero(stop == NodeKind.MARK)
    interior = steps.interior
    first = marked[np.searchsorted(at[marked], _clamped(steps.start_ns[interior], marks))]
    last = marked[np.searchsorted(at[marked], _clamped(steps.end_ns[interior], marks))]
    work, call, first_op = _launch_order(run, work, caller, event)
    return HostTrack(
        kind=stop,
        event=event,
        at_ns=at,
        dur_ns=dur,
        before_ns=_work_before(at, dur, spans),
        step_first=first,
        step_last=last,
        work=work,
        call=call,
        first=first_op,
        part_spans=spans,
        concurrent_calls_ns=_overlap_of_threads_ns(run, calls),
    )


def _device_work_and_calls(run: Run, device: str) -> tuple[DeviceWork, Ints]:
    """Return the device ops, and the event row of the call that launched each; -1 if it was not recorded.

    On a CPU, an exchange between ranks without a call stays host work: nothing says when it could start.
    """
    if device == "gpu":
        work = device_work(run)
        return work, launch_calls(work)
    work = exchanges(run)
    caller = exchange_calls(work)
    return work.select(caller >= 0), caller[caller >= 0]


def _calls(run: Run, caller: Ints) -> Ints:
    """Rows of the calls that launched device work of this run, and of those that may have waited for it."""
    events = run.event_rows
    kind = events["kind"]
    waits = (kind == EventKind.SYNC.value) | (kind == EventKind.COPY_CALL.value) | (kind == EventKind.ALLOC.value)
    waits &= (events["dur_ns"] > 0) & np.isin(events["thread"], launching_threads(run))
    waits[caller[caller >= 0]] = True
    return np.flatnonzero(waits)


def _node_kinds(run: Run, calls: Ints) -> Ints:
    kind = run.event_rows["kind"][calls]
    stop = np.full(len(calls), int(NodeKind.LAUNCH), np.int64)
    for event_kind, node_kind in _STOPS.items():
        stop[kind == event_kind] = int(node_kind)
    return stop


def _marks(run: Run, steps: Steps, calls: Ints) -> Ints:
    """Starts and ends of recorded steps. Without steps, the run ends for the host with its last call."""
    marks = np.union1d(steps.start_ns[steps.recorded], steps.end_ns[steps.recorded])
    if steps.detected_by == "whole run" and len(calls):
        ends = run.event_rows["start_ns"][calls] + run.event_rows["dur_ns"][calls]
        marks = np.minimum(marks, max(int(ends.max()), int(marks[0])))
    return np.unique(marks)


def _clamped(at: Ints, marks: Ints) -> Ints:
    clamped: Ints = np.minimum(at, marks[-1])
    return clamped


def _window(run: Run, calls: Ints, marks: Ints) -> Spans:
    events = run.event_rows
    start = min(int(marks[0]), int(events["start_ns"][calls].min(initial=marks[0])))
    end = max(int(marks[-1]), int((events["start_ns"][calls] + events["dur_ns"][calls]).max(initial=0)))
    return union([start], [max(end, start + 1)])


def _points(spans: Mapping[str, Spans], device: str) -> Ints:
    """Boundaries between parts. On a GPU only for loading, because loading makes no calls that would be nodes."""
    parts = [spans["loader"]] if device == "gpu" else list(spans.values())
    return np.unique(np.concatenate([edge for each in parts for edge in each]))


def _work_before(at: Ints, dur: Ints, spans: Mapping[str, Spans]) -> dict[str, Floats]:
    """Host work between each node and the previous one; a negative "overlap" where they overlap."""
    previous_end = np.append(at[:1], (at + dur)[:-1])
    before_ns = {part: Coverage.of(each).covered_ns(previous_end, at).astype(float) for part, each in spans.items()}
    before_ns["overlap"] = np.minimum(at - previous_end, 0).astype(float)
    return before_ns


def _launch_order(run: Run, work: DeviceWork, caller: Ints, event: Ints) -> tuple[DeviceWork, Ints, Ints]:
    """Device ops in launch order, the node that launched each, and the first op of each node."""
    stop_of = np.full(len(run.event_rows) + 1, NONE, np.int64)  # one more, for the caller -1
    nodes = np.flatnonzero(event >= 0)
    stop_of[event[nodes]] = nodes
    call = stop_of[caller]
    order = np.lexsort((work.start_ns, call))
    work, call = DeviceWork(work.events, work.event_rows[order]), call[order]
    return work, call, np.searchsorted(call, np.arange(len(event) + 1))


def _overlap_of_threads_ns(run: Run, calls: Ints) -> int:
    """Time in which two threads were inside such calls at once."""
    events = run.event_rows
    start, end, thread = (
        events["start_ns"][calls],
        (events["start_ns"] + events["dur_ns"])[calls],
        events["thread"][calls],
    )
    summed_ns = sum(
        union(start[thread == thread_id], end[thread == thread_id]).total_ns for thread_id in np.unique(thread)
    )
    return summed_ns - union(start, end).total_ns
