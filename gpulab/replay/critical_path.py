"""The critical path of a step: which spans decided its length, and what would shorten it.

From the end of a step one walks back along what bound each moment: the host was busy, or waited for work of the
device; that work began late because the host called late, because other work had its turn, or because another stream
had to end. What is met on the way, laid end to end, is the step, to the nanosecond; all else had time to spare. What
a change gives is not read off the path, as another path takes over soon: it is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.kernels.table import is_matrix
from gpulab.intervals import Spans, union
from gpulab.replay.batched_sweep import steps_ns
from gpulab.replay.graph.graph import NONE, Graph, Stop
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.sweep import NEVER, Timed, typical
from gpulab.tables import Kind

# Kinds of a path that are neither a part of the ledger nor work of the device.
LATENCY = "latency"  # from a call to the beginning of its work, on an idle device
TURN = "turn"  # from one piece of work to the next
WAIT = "wait"  # until the host has noticed, or another stream: after the work that was waited for
QUEUE = "queue"  # until a full launch queue takes another call
BETWEEN = {LATENCY: "launch latency", TURN: "gaps between kernels", WAIT: "return from a wait", QUEUE: "full queue"}
_OWN = {Stop.LAUNCH: "launch", Stop.COPY_CALL: "copy_call", Stop.SYNC: "sync", Stop.ALLOC: "alloc"}
_WORK = {Kind.COLLECTIVE: "communication", Kind.MEMCPY: "copies", Kind.MEMSET: "copies"}
EQUAL_FRAC = 0.01  # a device slower by less keeps pace with its host: their ends only fall differently into steps
TENTH = 0.9
WORTH_FRAC = 0.005  # of a step; less is not worth two replays


@dataclass(frozen=True)
class Segment:
    """A stretch of the path."""

    start_ns: int
    end_ns: int
    kind: str  # a part of the ledger, or one of BETWEEN
    on_device: bool
    index: int  # which stop, or which device work

    @property
    def dur_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """What decided the length of one step; its segments follow one another without a gap."""

    timed: Timed
    step: int  # counted among the steps that count
    paced_by: str  # "host" or "device": the side that the step is measured on
    segments: tuple[Segment, ...]  # in order of time

    @property
    def step_ns(self) -> int:
        """The length of the step, which is that of the path."""
        return self.segments[-1].end_ns - self.segments[0].start_ns if self.segments else 0

    @property
    def by_kind(self) -> Mapping[str, int]:
        """How much of the step each kind decided, most first; sums to the step."""
        told: dict[str, int] = {}
        for segment in self.segments:
            told[segment.kind] = told.get(segment.kind, 0) + segment.dur_ns
        return dict(sorted(told.items(), key=lambda each: -each[1]))

    def spans(self, kind: str | None = None, *, on_device: bool | None = None) -> Spans:
        """When the path was of a kind, or on one side."""
        mine = [
            each
            for each in self.segments
            if (kind is None or each.kind == kind) and (on_device is None or each.on_device is on_device)
        ]
        return union([each.start_ns for each in mine], [each.end_ns for each in mine])


@dataclass(frozen=True, kw_only=True)
class Lever:
    """What a typical step gains where all time of a kind is shorter, on the path or not."""

    kind: str
    path_ns: int  # how much of the path it is
    tenth_ns: float  # with a tenth of it taken away
    all_ns: float  # with all of it: a bound


@dataclass(frozen=True)
class Extent:
    """From where to where a step is, on the side that sets the pace, and with what it ends."""

    step: int  # counted among the steps that count
    begin_ns: float
    end_ns: float
    stop: int  # the stop that ends it
    work: int  # the device work that ends it, where the device sets the pace; -1 otherwise


def extent(timed: Timed, step: int | None = None) -> Extent:
    """Where a step is; the most typical one unless told."""
    graph = timed.graph
    paced = device_paces(timed)
    lengths = timed.device_steps_ns if paced else timed.host_steps_ns
    if step is None:
        step = int(np.argmin(np.abs(lengths - typical(lengths, graph.steps.burst))))
    first, last = int(graph.step_first[step]), int(graph.step_last[step])
    begin, end = float(timed.ends_ns[first]), float(timed.ends_ns[last])
    if not paced:
        return Extent(step, begin, end, last, NONE)
    if graph.steps.found_by == "whole run":
        work, end = _last_work(timed, len(graph.device))
        return Extent(step, begin, end, last, work)
    work, end = _last_work(timed, int(graph.host.first[last]))
    return Extent(step, _begins(timed, step, begin), end, last, work)


def critical_path(timed: Timed, step: int | None = None) -> CriticalPath:
    """The path of a step, counted among those that count; of the most typical one unless told."""
    one = extent(timed, step)
    segments = _Walk(timed, round(one.begin_ns), round(one.end_ns)).back(one.stop, one.work)
    return CriticalPath(timed, one.step, "host" if one.work == NONE else "device", segments)


def levers(timed: Timed, path: CriticalPath) -> tuple[Lever, ...]:
    """For each kind on the path, what less of it would give; what gives most comes first."""
    now_ns = timed.step_ns
    asked = {kind: ns for kind, ns in path.by_kind.items() if ns >= WORTH_FRAC * path.step_ns and kind != QUEUE}
    lengths = steps_ns([shorter(timed.graph, kind, left) for kind in asked for left in (TENTH, 0.0)])
    found = [
        Lever(kind=kind, path_ns=ns, tenth_ns=max(0.0, now_ns - tenth), all_ns=max(0.0, now_ns - without))
        for (kind, ns), tenth, without in zip(asked.items(), lengths[::2], lengths[1::2], strict=True)
    ]
    return tuple(sorted(found, key=lambda lever: (-lever.tenth_ns, -lever.all_ns)))


def shorter(graph: Graph, kind: str, left: float) -> Graph:
    """The graph with all time of a kind multiplied, on the path or not."""
    host, device = graph.host, graph.device
    if kind == LATENCY:
        return graph.with_device(latency_ns=device.latency_ns * left)
    if kind == TURN:
        return graph.with_device(turn_ns=device.turn_ns * left)
    if kind == WAIT:
        return graph.with_host(wait_ns=host.wait_ns * left).with_device(lag_ns=device.lag_ns * left)
    mine = families(graph) == kind
    if mine.any():
        return graph.with_device(dur_ns=np.where(mine, device.dur_ns * left, device.dur_ns))
    calls = np.isin(host.stop, [int(stop) for stop, own in _OWN.items() if own == kind])
    return graph.scaled_before({kind: left}).with_host(own_ns=np.where(calls, host.own_ns * left, host.own_ns))


@once
def families(graph: Graph) -> NDArray[np.str_]:
    """The part of the ledger that each device work belongs to."""
    events, work = graph.run.event_rows, graph.device.event
    words = events.words("name")
    matrix = np.array([is_matrix(word) for word in words.vocabulary] + [False])[events["name"][work]]
    told = np.where(matrix, "matmul", "kernels").astype("<U16")
    for kind, family in _WORK.items():
        told[events["kind"][work] == kind] = family
    return told


def device_paces(timed: Timed) -> bool:
    """Whether a step is as long as its device work makes it, with the host running ahead."""
    graph = timed.graph
    if not len(graph.device):
        return False
    if graph.steps.found_by == "whole run":
        return bool(_last_work(timed, len(graph.device))[1] > timed.ends_ns[graph.step_last[-1]])
    burst = graph.steps.burst
    return typical(timed.device_steps_ns, burst) > (1 + EQUAL_FRAC) * typical(timed.host_steps_ns, burst)


def _last_work(timed: Timed, until: int) -> tuple[int, float]:
    """Of the work called for before, what ends last, and when."""
    ends = np.where(timed.graph.device.call[:until] >= 0, timed.device_end_ns[:until], NEVER)
    if not len(ends):
        return NONE, NEVER
    last = int(ends.argmax())
    return last, float(ends[last])


def _begins(timed: Timed, step: int, otherwise: float) -> float:
    since = int(timed.graph.host.first[timed.graph.step_first[step]])
    _, ended = _last_work(timed, since)
    return ended if ended > NEVER / 2 else otherwise


class _Walk:
    """From the end of a step back to its beginning; each segment ends where the one found before it began."""

    def __init__(self, timed: Timed, begin: int, end: int) -> None:
        self._timed, self._host, self._device = timed, timed.graph.host, timed.graph.device
        self._begin, self._at = begin, end
        self._families = families(timed.graph)
        self._parts = [part for part in self._host.before_ns if part != "overlap"]
        self._found: list[Segment] = []

    def back(self, stop: int, work: int) -> tuple[Segment, ...]:
        """The path in order of time; it ends with a piece of device work, or else with a stop."""
        while self._at > self._begin:
            if work != NONE:
                stop, work = self._worked(work)
            else:
                work = self._ended(stop)
            if work == NONE and self._at > self._begin:
                stop = self._led_to(stop)
        return tuple(reversed(self._found))

    def _cut(self, at_ns: float, kind: str, on_device: bool, index: int) -> None:
        """The path down to this moment is of this kind; what was told already, as calls overlap, is not told again."""
        until = max(round(at_ns), self._begin)
        if until < self._at:
            self._found.append(Segment(until, self._at, str(kind), on_device, index))
            self._at = until

    def _worked(self, work: int) -> tuple[int, int]:
        """Device work, and what it began after: a call, given as its stop, or other work."""
        device, timed = self._device, self._timed
        self._cut(timed.device_start_ns[work], self._families[work], True, work)
        call, before, after = int(device.call[work]), int(device.before[work]), int(device.after[work])
        begun = timed.begins_ns[call] + device.latency_ns[work] if call != NONE else NEVER
        ready = timed.device_end_ns[before] + device.turn_ns[work] if before != NONE else NEVER
        other = timed.device_end_ns[after] + device.lag_ns[work] if after != NONE else NEVER
        if call != NONE and begun >= max(ready, other):
            self._cut(timed.begins_ns[call], LATENCY, True, work)
            return call, NONE
        if after != NONE and other >= ready:
            self._cut(timed.device_end_ns[after], WAIT, True, work)
            return NONE, after
        if before != NONE:
            self._cut(timed.device_end_ns[before], TURN, True, work)
            return NONE, before
        self._cut(self._begin, TURN, True, work)  # its call is not in the run, and it is the first of its stream
        return NONE, NONE

    def _ended(self, stop: int) -> int:
        """A call, and the device work it returned after; -1 where it waited for none."""
        host, timed = self._host, self._timed
        wait, room = int(host.wait[stop]), int(host.room[stop])
        own = timed.begins_ns[stop] + host.own_ns[stop]
        ready = timed.device_end_ns[wait] + host.wait_ns[stop] if wait != NONE else NEVER
        freed = timed.device_end_ns[room] + host.room_ns[stop] if room != NONE else NEVER
        if ready > own and ready >= freed:
            self._cut(timed.device_end_ns[wait], WAIT, False, stop)
            return wait
        if freed > own:
            self._cut(timed.device_end_ns[room], QUEUE, False, stop)
            return room
        self._cut(timed.begins_ns[stop], _OWN.get(Stop(int(host.stop[stop])), "python"), False, stop)
        return NONE

    def _led_to(self, stop: int) -> int:
        """What the host did before a call, and the call before that."""
        top = float(self._timed.begins_ns[stop])
        for part in reversed(self._parts):
            top -= float(self._host.before_ns[part][stop])
            self._cut(top, part, False, stop)
        if stop == 0:
            self._cut(self._begin, "python", False, 0)
        return stop - 1
