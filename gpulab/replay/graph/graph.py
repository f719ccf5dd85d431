"""What a recorded run becomes so that it can be timed again: host calls in order, device work, and who waits for whom.

The host is one track: the calls that start device work or may wait for it, the ends of steps, and what lies before
each of them, by part of the ledger. Threads that launch in turn (the main one, autograd's) are one track. Without a
GPU there is no device work: the host computes, and the track is all there is.

    host    begins(i) = ends(i-1) + before(i)
            ends(i)   = max(begins(i) + own(i), device work waited for + its delay, room in the queue + its delay)
    device  starts(k) = max(its call begins + latency, work before on its stream + turn, work of another stream + lag)

A rewrite is a function from a graph to a graph: it changes costs and drops waits, never the order. Times are float64
nanoseconds: a model's times need not be whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import Work
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Ints, Spans, intersect
from gpulab.run import Run

Floats = NDArray[np.float64]
NONE = -1  # in an index: waits for nothing, was called for by nobody

# What profiling adds to: calling an operator, a kernel, the driver. Loading and the user's own Python it leaves alone.
CALLING = ("launch", "runtime", "dispatch", "glue")


class Stop(IntEnum):
    """What stands on the host's track."""

    MARK = 0  # a step begins or ends
    POINT = 1  # one part of the ledger ends and the next begins; nothing is called
    LAUNCH = 2
    COPY_CALL = 3
    SYNC = 4
    ALLOC = 5


@dataclass(frozen=True, eq=False)
class Host:
    """The host's track: one entry per stop, in order of time."""

    stop: Ints  # a Stop each
    event: Ints  # which row of the events table; -1 where the stop is no event
    from_ns: Floats  # where the stop before it ended in the recording
    at_ns: Floats  # where it began
    before_ns: Mapping[str, Floats]  # host work since the stop before it, by part; "overlap" may be negative
    own_ns: Floats  # what the call costs when there is nothing to wait for
    wait: Ints  # the device work that must have ended before it returns
    wait_ns: Floats  # how long after that it returns
    room: Ints  # the device work that must have ended before there is room in the launch queue
    room_ns: Floats
    first: Ints  # stop i calls for the device work first[i] .. first[i + 1]

    def __len__(self) -> int:
        return len(self.stop)


@dataclass(frozen=True, eq=False)
class Device:
    """Device work, in the order in which it was called for."""

    event: Ints  # which row of the events table
    dur_ns: Floats
    call: Ints  # the stop that called for it; -1: the call is not in the run, so it stays where it was
    latency_ns: Floats  # from the beginning of the call to that of the work, on an idle device
    before: Ints  # the work before it on its stream
    turn_ns: Floats  # from the end of that to its own beginning
    after: Ints  # the work of another stream it waits for
    lag_ns: Floats
    start_ns: Floats  # where it was in the recording

    def __len__(self) -> int:
        return len(self.event)

    @property
    def end_ns(self) -> Floats:
        """Where it ended in the recording."""
        return self.start_ns + self.dur_ns


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What device work usually waits for, in ns, where nothing special holds it up."""

    latency_ns: float
    turn_ns: float


@dataclass(frozen=True, eq=False)
class Graph:
    """A run as what can be timed again."""

    run: Run
    steps: Steps
    ledger: Ledger
    host: Host
    device: Device
    usual: Usual
    step_first: Ints  # for each step that counts, the stop where it begins
    step_last: Ints  # and the stop where it ends
    part_spans: Mapping[str, Spans]  # when the host was in which part, whether the device worked meanwhile or not
    unexplained_ns: float = 0.0  # time for which device work stood still and nothing says why
    guessed: bool = False  # waits between streams were not recorded, so they were guessed
    limits_ns: Mapping[str, float] = field(default_factory=dict)  # what a step cannot be shorter than: "the workers"
    made: frozenset[str] = frozenset()  # rewrites made already that later ones must know of: "amp"
    crossed_ns: float = 0.0  # time for which threads called the device at once: one track cannot tell them apart

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is the device; otherwise the CPU is."""
        return self.ledger.device == "gpu"

    @cached_property
    def step_of(self) -> Ints:
        """For each stop, the step it is in, counted among those that count; -1 outside."""
        index = np.searchsorted(self.step_first, np.arange(len(self.host)), side="right") - 1
        inside = (index >= 0) & (np.arange(len(self.host)) <= self.step_last[np.maximum(index, 0)])
        return np.where(inside, index, NONE)

    def with_host(self, **changed: object) -> Graph:
        """The same graph with these columns of its host track changed."""
        return replace(self, host=replace(self.host, **changed))  # type: ignore[arg-type]

    def with_device(self, **changed: object) -> Graph:
        """The same graph with these columns of its device work changed."""
        return replace(self, device=replace(self.device, **changed))  # type: ignore[arg-type]

    @property
    def work(self) -> Work:
        """Device work as analyses know it, in the order in which it was called for."""
        return Work(self.run.event_rows, self.device.event)

    def without_calls(self, stops: NDArray[Any]) -> Graph:
        """The same graph where these calls cost nothing and wait for nothing; a mask or an index picks them."""
        own, wait, wait_ns = self.host.own_ns.copy(), self.host.wait.copy(), self.host.wait_ns.copy()
        own[stops], wait[stops], wait_ns[stops] = 0.0, NONE, 0.0
        return self.with_host(own_ns=own, wait=wait, wait_ns=wait_ns)

    def without_work(self, work: NDArray[Any]) -> Graph:
        """The same graph where this device work takes no time, and no turn on its stream."""
        dur, turn = self.device.dur_ns.copy(), self.device.turn_ns.copy()
        dur[work], turn[work] = 0.0, np.minimum(turn[work], 0.0)
        return self.with_device(dur_ns=dur, turn_ns=turn)

    def scaled_before(self, factors: Mapping[str, float | Floats]) -> Graph:
        """The same graph with host work of these parts multiplied: a factor for all stops, or one each."""
        changed = {part: ns * factors[part] if part in factors else ns for part, ns in self.host.before_ns.items()}
        return self.with_host(before_ns=changed)

    def scaled_inside(self, spans: Spans, factor: float, *parts: str) -> Graph:
        """The same graph with the host work of these parts (of all) that lay inside these spans multiplied."""
        return self.scaled_before(
            {part: 1 - share * (1 - factor) for part, share in self.within(spans, *parts).items()}
        )

    def with_more_before(self, part: str, added_ns: NDArray[np.floating[Any]]) -> Graph:
        """The same graph with more host work of this part before each stop."""
        before = self.host.before_ns
        return self.with_host(before_ns={**before, part: before.get(part, 0.0) + added_ns})

    def within(self, spans: Spans, *parts: str) -> dict[str, Floats]:
        """Of the host work before each stop, the share that lay inside these spans in the recording, by part, 0-1."""
        told = {}
        for part in parts or tuple(self.host.before_ns):
            if part not in self.part_spans:
                continue
            mine = Coverage.of(intersect(self.part_spans[part], spans))
            start, end = self.host.from_ns.astype(np.int64), self.host.at_ns.astype(np.int64)
            inside = mine.within(start, end)
            whole = Coverage.of(self.part_spans[part]).within(start, end)
            told[part] = np.divide(inside, whole, out=np.zeros(len(start)), where=whole > 0)
        return told
