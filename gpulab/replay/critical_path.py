"""Critical path of a step: the spans that determine its length, and the gain from making each kind shorter.

The walk starts at the end of a step and goes back along what bound each time: the host was busy or waited for device
work; device work started late because the host launched it late, because earlier work on its stream was running, or
because another stream had to finish. The segments add up to the step, to the nanosecond. Everything else had slack.
The gain of a change cannot be read off the path, because another path soon takes over, so each change is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.intervals import Spans, union
from gpulab.replay.batched_sweep import batch_step_times
from gpulab.replay.graph.graph import NONE, Graph, NodeKind
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.sweep import NEVER, Schedule, burst_median
from gpulab.tables import EventKind

# Kinds of a path segment that are neither a part of the ledger nor device work.
LATENCY = "latency"  # from a launch to the start of its kernel, on an idle device
GAP = "turn"  # the gap between consecutive kernels on a stream
WAIT = "wait"  # from the end of the awaited work until the host returns, or the other stream starts
QUEUE = "queue"  # until a full launch queue accepts another launch
KIND_LABELS = {
    LATENCY: "launch latency",
    GAP: "gaps between kernels",
    WAIT: "return from a wait",
    QUEUE: "full launch queue",
}
_CALL_KINDS = {
    NodeKind.LAUNCH: "launch",
    NodeKind.COPY_CALL: "copy_call",
    NodeKind.SYNC: "sync",
    NodeKind.ALLOC: "alloc",
}
_WORK = {EventKind.COLLECTIVE: "communication", EventKind.MEMCPY: "copies", EventKind.MEMSET: "copies"}
TIE_FRAC = 0.01  # if the device is slower by less, it keeps up with the host; only the step boundaries differ
REMAINING_FRAC = 0.9
MIN_FRAC = 0.005  # of a step; shorter kinds are not worth two replays


@dataclass(frozen=True)
class PathSegment:
    """One span of the critical path."""

    start_ns: int
    end_ns: int
    kind: str  # a part of the ledger, or a key of BETWEEN
    on_device: bool
    index: int  # index of the host node or of the device op

    @property
    def dur_ns(self) -> int:
        """Duration."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """What determined the length of one step; the segments follow one another without gaps."""

    schedule: Schedule
    step: int  # index among the interior steps
    bound_by: str  # "host" or "device": the side that the step is measured on
    segments: tuple[PathSegment, ...]  # in order of time

    @property
    def step_ns(self) -> int:
        """Length of the step, which is the length of the path."""
        return self.segments[-1].end_ns - self.segments[0].start_ns if self.segments else 0

    @property
    def by_kind(self) -> Mapping[str, int]:
        """Time on the path by kind, largest first; sums to the step."""
        totals_ns: dict[str, int] = {}
        for segment in self.segments:
            totals_ns[segment.kind] = totals_ns.get(segment.kind, 0) + segment.dur_ns
        return dict(sorted(totals_ns.items(), key=lambda item: -item[1]))

    def spans(self, kind: str | None = None, *, on_device: bool | None = None) -> Spans:
        """Spans of the path, optionally of one kind or on one side only."""
        selected = [
            each
            for each in self.segments
            if (kind is None or each.kind == kind) and (on_device is None or each.on_device is on_device)
        ]
        return union([segment.start_ns for segment in selected], [segment.end_ns for segment in selected])


@dataclass(frozen=True, kw_only=True)
class ShorteningGain:
    """Gain of a typical step if all time of one kind is shorter, on the path or off it."""

    kind: str
    path_ns: int  # time of this kind on the path
    tenth_ns: float  # gain from 10 % less of it
    all_ns: float  # gain from removing all of it: an upper bound


@dataclass(frozen=True)
class StepExtent:
    """Start and end of a step on the side that sets the pace, and the node or op that ends it."""

    step: int  # index among the interior steps
    start_ns: float
    end_ns: float
    last_node: int  # the host node that ends it
    last_op: int  # the device op that ends it if the device sets the pace, else -1


def step_extent(schedule: Schedule, step: int | None = None) -> StepExtent:
    """Return the extent of a step; of the most typical one by default."""
    graph = schedule.graph
    by_device = is_device_bound(schedule)
    lengths = schedule.device_steps_ns if by_device else schedule.host_steps_ns
    if step is None:
        step = int(np.argmin(np.abs(lengths - burst_median(lengths, graph.steps.burst))))
    first, last = int(graph.step_start_node[step]), int(graph.step_end_node[step])
    begin, end = float(schedule.node_end_ns[first]), float(schedule.node_end_ns[last])
    if not by_device:
        return StepExtent(step, begin, end, last, NONE)
    if graph.steps.detected_by == "whole run":
        work, end = _last_work(schedule, len(graph.device))
        return StepExtent(step, begin, end, last, work)
    work, end = _last_work(schedule, int(graph.host.first_op[last]))
    return StepExtent(step, _previous_end(schedule, step, begin), end, last, work)


def critical_path(schedule: Schedule, step: int | None = None) -> CriticalPath:
    """Return the critical path of an interior step; of the most typical one by default."""
    span = step_extent(schedule, step)
    segments = _Walk(schedule, round(span.start_ns), round(span.end_ns)).back(span.last_node, span.last_op)
    return CriticalPath(schedule, span.step, "host" if span.last_op == NONE else "device", segments)


def shortening_gains(schedule: Schedule, path: CriticalPath) -> tuple[ShorteningGain, ...]:
    """Return the gain from shortening each kind on the path, largest gain first."""
    now_ns = schedule.step_ns
    candidates = {kind: ns for kind, ns in path.by_kind.items() if ns >= MIN_FRAC * path.step_ns and kind != QUEUE}
    lengths = batch_step_times(
        [scale_kind(schedule.graph, kind, left) for kind in candidates for left in (REMAINING_FRAC, 0.0)]
    )
    gains = [
        ShorteningGain(kind=kind, path_ns=ns, tenth_ns=max(0.0, now_ns - tenth_less), all_ns=max(0.0, now_ns - none))
        for (kind, ns), tenth_less, none in zip(candidates.items(), lengths[::2], lengths[1::2], strict=True)
    ]
    return tuple(sorted(gains, key=lambda lever: (-lever.tenth_ns, -lever.all_ns)))


def scale_kind(graph: Graph, kind: str, factor: float) -> Graph:
    """Return the graph with all time of a kind multiplied by `left`, on the path or off it."""
    host, device = graph.host, graph.device
    if kind == LATENCY:
        return graph.with_device(latency_ns=device.latency_ns * factor)
    if kind == GAP:
        return graph.with_device(gap_ns=device.gap_ns * factor)
    if kind == WAIT:
        return graph.with_host(return_delay_ns=host.return_delay_ns * factor).with_device(
            awaited_delay_ns=device.awaited_delay_ns * factor
        )
    selected = ledger_parts_of_work(graph) == kind
    if selected.any():
        return graph.with_device(dur_ns=np.where(selected, device.dur_ns * factor, device.dur_ns))
    calls = np.isin(host.kind, [int(stop) for stop, kind_of_call in _CALL_KINDS.items() if kind_of_call == kind])
    return graph.scaled_before({kind: factor}).with_host(call_ns=np.where(calls, host.call_ns * factor, host.call_ns))


@cached_per_run
def ledger_parts_of_work(graph: Graph) -> NDArray[np.str_]:
    """Return the part of the ledger that each device op belongs to."""
    events, work = graph.run.event_rows, graph.device.event
    if not graph.on_gpu:  # exchanges between ranks
        return np.full(len(work), "communication", "<U16")
    names = events.text("name")
    is_gemm = np.array([is_matrix(word) for word in names.vocabulary] + [False])[events["name"][work]]
    parts = np.where(is_gemm, "matmul", "kernels").astype("<U16")
    for kind, family in _WORK.items():
        parts[events["kind"][work] == kind] = family
    return parts


def is_device_bound(schedule: Schedule) -> bool:
    """Return whether the device determines the step time while the host runs ahead."""
    graph = schedule.graph
    if not len(graph.device) or not graph.on_gpu:
        return False
    if graph.steps.detected_by == "whole run":
        return bool(_last_work(schedule, len(graph.device))[1] > schedule.node_end_ns[graph.step_end_node[-1]])
    burst = graph.steps.burst
    return burst_median(schedule.device_steps_ns, burst) > (1 + TIE_FRAC) * burst_median(schedule.host_steps_ns, burst)


def _last_work(timed: Schedule, until: int) -> tuple[int, float]:
    """Return the device op launched before `until` that ends last, and its end."""
    ends = np.where(timed.graph.device.call[:until] >= 0, timed.device_end_ns[:until], NEVER)
    if not len(ends):
        return NONE, NEVER
    last = int(ends.argmax())
    return last, float(ends[last])


def _previous_end(timed: Schedule, step: int, otherwise: float) -> float:
    since = int(timed.graph.host.first_op[timed.graph.step_start_node[step]])
    _, end = _last_work(timed, since)
    return end if end > NEVER / 2 else otherwise


class _Walk:
    """Walk from the end of a step back to its start; each segment ends where the previously added one starts."""

    def __init__(self, timed: Schedule, begin: int, end: int) -> None:
        self._timed, self._host, self._device = timed, timed.graph.host, timed.graph.device
        self._begin, self._position = begin, end
        self._families = ledger_parts_of_work(timed.graph)
        self._parts = [part for part in self._host.before_ns if part != "overlap"]
        self._segments: list[PathSegment] = []

    def back(self, stop: int, work: int) -> tuple[PathSegment, ...]:
        """Return the path in order of time, starting the walk from a device op, or else from a host node."""
        while self._position > self._begin:
            if work != NONE:
                stop, work = self._add_device_op(work)
            else:
                work = self._add_host_call(stop)
            if work == NONE and self._position > self._begin:
                stop = self._add_host_work(stop)
        return tuple(reversed(self._segments))

    def _add(self, at_ns: float, kind: str, on_device: bool, index: int) -> None:
        """Add a segment of this kind that starts at `at_ns`; skip time already on the path, as calls overlap."""
        start = max(round(at_ns), self._begin)
        if start < self._position:
            self._segments.append(PathSegment(start, self._position, str(kind), on_device, index))
            self._position = start

    def _add_device_op(self, work: int) -> tuple[int, int]:
        """Add a device op; return what it started after: the host node that launched it, or another op."""
        device, timed = self._device, self._timed
        self._add(timed.device_start_ns[work], self._families[work], True, work)
        call, before, after = int(device.call[work]), int(device.previous_op[work]), int(device.awaited_op[work])
        launched = timed.node_start_ns[call] + device.latency_ns[work] if call != NONE else NEVER
        ready = timed.device_end_ns[before] + device.gap_ns[work] if before != NONE else NEVER
        other = timed.device_end_ns[after] + device.awaited_delay_ns[work] if after != NONE else NEVER
        if call != NONE and launched >= max(ready, other):
            self._add(timed.node_start_ns[call], LATENCY, True, work)
            return call, NONE
        if after != NONE and other >= ready:
            self._add(timed.device_end_ns[after], WAIT, True, work)
            return NONE, after
        if before != NONE:
            self._add(timed.device_end_ns[before], GAP, True, work)
            return NONE, before
        self._add(self._begin, GAP, True, work)  # its launch was not recorded, and it is the first op of its stream
        return NONE, NONE

    def _add_host_call(self, stop: int) -> int:
        """Add a host call; return the device op it waited for, or -1."""
        host, timed = self._host, self._timed
        wait, queue_op = int(host.awaited_op[stop]), int(host.queue_op[stop])
        own_end = timed.node_start_ns[stop] + host.call_ns[stop]
        ready = timed.device_end_ns[wait] + host.return_delay_ns[stop] if wait != NONE else NEVER
        queue_free = timed.device_end_ns[queue_op] + host.queue_delay_ns[stop] if queue_op != NONE else NEVER
        if ready > own_end and ready >= queue_free:
            self._add(timed.device_end_ns[wait], WAIT, False, stop)
            return wait
        if queue_free > own_end:
            self._add(timed.device_end_ns[queue_op], QUEUE, False, stop)
            return queue_op
        self._add(timed.node_start_ns[stop], _CALL_KINDS.get(NodeKind(int(host.kind[stop])), "python"), False, stop)
        return NONE

    def _add_host_work(self, stop: int) -> int:
        """Add the host work before a call; return the previous host node."""
        start = float(self._timed.node_start_ns[stop])
        for part in reversed(self._parts):
            start -= float(self._host.before_ns[part][stop])
            self._add(start, part, False, stop)
        if stop == 0:
            self._add(self._begin, "python", False, 0)
        return stop - 1
