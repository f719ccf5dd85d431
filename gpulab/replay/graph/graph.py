"""The graph of a recorded run, which can be timed again: host nodes in order, device ops, and their dependencies.

The host is one track of nodes: calls that launch device work or may wait for it, ends of steps, and the host work
before each of them, by part of the ledger. Threads that launch alternately (the main one, autograd's) form one track.
Without a GPU there are no device ops: the host computes, and the track is everything.

    host    begins(i) = ends(i-1) + before(i)
            ends(i)   = max(begins(i) + call(i), awaited device op + its delay, free slot in the queue + its delay)
    device  starts(k) = max(its launch begins + latency, previous op on its stream + gap, awaited op + its delay)

A rewrite is a function from a graph to a graph: it changes costs and removes waits, never the order. Times are float64
nanoseconds, because modelled times are not integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import DeviceWork
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Ints, Spans, intersect
from gpulab.run import Run

Floats = NDArray[np.float64]
NONE = -1  # as an index: waits for nothing, or launched by no recorded call

# Limits of a step, by the names that users see.
WORKER_LIMIT, CORE_LIMIT = "data loading by the workers", "computation on the CPU cores"

# Parts that profiling makes slower: calls of operators, kernels and the driver; not loading, not the user's own Python.
CALL_PARTS = ("launch", "runtime", "dispatch", "glue")


class NodeKind(IntEnum):
    """Kind of a host node."""

    MARK = 0  # a step starts or ends
    POINT = 1  # one part of the ledger ends and the next starts; no call
    LAUNCH = 2
    COPY_CALL = 3
    SYNC = 4
    ALLOC = 5


@dataclass(frozen=True, eq=False)
class HostNodes:
    """The host track: one entry per host node, in order of time."""

    kind: Ints  # a Stop
    event: Ints  # row of the events table; -1 if the node is not an event
    previous_end_ns: Floats  # end of the previous node in the recording
    start_ns: Floats  # its start in the recording
    before_ns: Mapping[str, Floats]  # host work since the previous node, by part; "overlap" may be negative
    call_ns: Floats  # cost of the call if it does not wait
    awaited_op: Ints  # index of the device op that must end before it returns
    return_delay_ns: Floats  # delay from that end to the return
    queue_op: Ints  # index of the device op that must end before the launch queue has a free slot
    queue_delay_ns: Floats
    first_op: Ints  # node i launches the device ops first[i] .. first[i + 1]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class DeviceOps:
    """Device ops (kernels, copies, fills) in launch order."""

    event: Ints  # row of the events table
    dur_ns: Floats
    call: Ints  # the host node that launched it; -1: not recorded, so it keeps its time
    latency_ns: Floats  # from the start of the launch to the start of the op, on an idle device
    previous_op: Ints  # the previous op on its stream
    gap_ns: Floats  # gap after the previous op
    awaited_op: Ints  # the op of another stream it waits for
    awaited_delay_ns: Floats
    start_ns: Floats  # its start in the recording

    def __len__(self) -> int:
        return len(self.event)

    @property
    def end_ns(self) -> Floats:
        """End in the recording."""
        return self.start_ns + self.dur_ns


@dataclass(frozen=True, kw_only=True)
class UsualDelays:
    """Usual delays of device ops, in ns, without any special cause."""

    latency_ns: float
    gap_ns: float


@dataclass(frozen=True, eq=False)
class Graph:
    """The graph of one run."""

    run: Run
    steps: Steps
    ledger: Ledger
    host: HostNodes
    device: DeviceOps
    usual_delays: UsualDelays
    step_start_node: Ints  # for each interior step, the host node where it starts
    step_end_node: Ints  # and the host node where it ends
    part_spans: Mapping[str, Spans]  # when the host was in each part, whether the device was busy or not
    unexplained_ns: float = 0.0  # unexplained idle time before device work
    waits_inferred: bool = False  # waits between streams were not recorded, so they were inferred
    limits_ns: Mapping[str, float] = field(default_factory=dict)  # other lower limits of a step, by name: WORKER_LIMIT
    waiting_ns: float = 0.0  # the part of these limits that waits, e.g. for storage: warm CPU caches do not shorten it
    applied: frozenset[str] = frozenset()  # applied rewrites that later ones depend on: "amp"
    concurrent_calls_ns: float = 0.0  # time in which several threads called the device: one track cannot separate them

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU; otherwise it is the CPU."""
        return self.ledger.device == "gpu"

    @cached_property
    def step_of(self) -> Ints:
        """Index of the interior step that each host node is in; -1 outside."""
        index = np.searchsorted(self.step_start_node, np.arange(len(self.host)), side="right") - 1
        inside = (index >= 0) & (np.arange(len(self.host)) <= self.step_end_node[np.maximum(index, 0)])
        return np.where(inside, index, NONE)

    def with_host(self, **changed: object) -> Graph:
        """Return the graph with these columns of its host track replaced."""
        return replace(self, host=replace(self.host, **changed))  # type: ignore[arg-type]

    def with_device(self, **changed: object) -> Graph:
        """Return the graph with these columns of its device ops replaced."""
        return replace(self, device=replace(self.device, **changed))  # type: ignore[arg-type]

    @property
    def work(self) -> DeviceWork:
        """The device ops as analyses represent them, in launch order."""
        return DeviceWork(self.run.event_rows, self.device.event)

    def without_calls(self, stops: NDArray[Any]) -> Graph:
        """Return the graph where these calls cost nothing and wait for nothing; `stops` is a mask or an index."""
        call_ns, awaited_op, return_delay_ns = (
            self.host.call_ns.copy(),
            self.host.awaited_op.copy(),
            self.host.return_delay_ns.copy(),
        )
        call_ns[stops], awaited_op[stops], return_delay_ns[stops] = 0.0, NONE, 0.0
        return self.with_host(call_ns=call_ns, awaited_op=awaited_op, return_delay_ns=return_delay_ns)

    def without_work(self, work: NDArray[Any]) -> Graph:
        """Return the graph where these device ops take no time and leave no gap on their stream."""
        dur_ns, gap_ns = self.device.dur_ns.copy(), self.device.gap_ns.copy()
        dur_ns[work], gap_ns[work] = 0.0, np.minimum(gap_ns[work], 0.0)
        return self.with_device(dur_ns=dur_ns, gap_ns=gap_ns)

    def scaled_before(self, factors: Mapping[str, float | Floats]) -> Graph:
        """Return the graph with host work of these parts multiplied, by one factor for all nodes or one per node."""
        changed = {part: ns * factors[part] if part in factors else ns for part, ns in self.host.before_ns.items()}
        return self.with_host(before_ns=changed)

    def scaled_inside(self, spans: Spans, factor: float, *parts: str) -> Graph:
        """Return the graph with the host work of these parts (default: all) inside these spans multiplied."""
        return self.scaled_before(
            {part: 1 - share * (1 - factor) for part, share in self.share_inside(spans, *parts).items()}
        )

    def with_more_before(self, part: str, added_ns: NDArray[np.floating[Any]]) -> Graph:
        """Return the graph with more host work of this part before each node."""
        before = self.host.before_ns
        return self.with_host(before_ns={**before, part: before.get(part, 0.0) + added_ns})

    def share_inside(self, spans: Spans, *parts: str) -> dict[str, Floats]:
        """Return the share (0-1) of the recorded host work before each node that was inside these spans, by part."""
        shares = {}
        for part in parts or tuple(self.host.before_ns):
            if part not in self.part_spans:
                continue
            part_inside = Coverage.of(intersect(self.part_spans[part], spans))
            start, end = self.host.previous_end_ns.astype(np.int64), self.host.start_ns.astype(np.int64)
            inside = part_inside.covered_ns(start, end)
            total = Coverage.of(self.part_spans[part]).covered_ns(start, end)
            shares[part] = np.divide(inside, total, out=np.zeros(len(start)), where=total > 0)
        return shares
