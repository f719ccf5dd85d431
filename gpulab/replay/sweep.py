"""Compute the start and end of everything in a graph from its costs, in one sweep in order of time.

The recorded order is a valid order of evaluation, because every wait points back in time; a rewrite changes costs and
removes waits, never the order. If the host runs ahead, the device determines the step time in the end, although the
host's step marks are closer together until the launch queue is full. So the step time is the slower of the two.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import chain

import numpy as np

from gpulab.analysis.steps.detection import burst_means
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import NONE, DeviceOps, Floats, Graph, HostNodes

NEVER = -1e30


@dataclass(frozen=True, eq=False)
class Schedule:
    """Start and end of each host node and each device op."""

    graph: Graph
    node_start_ns: Floats  # of each host node
    node_end_ns: Floats
    device_start_ns: Floats
    device_end_ns: Floats

    @property
    def host_steps_ns(self) -> Floats:
        """Step times measured between the host's step marks."""
        durations: Floats = self.node_end_ns[self.graph.step_end_node] - self.node_end_ns[self.graph.step_start_node]
        return durations

    @property
    def device_steps_ns(self) -> Floats:
        """Step times measured between the ends of each step's last device op."""
        graph = self.graph
        if not len(self.device_end_ns) or not graph.on_gpu:  # a CPU ends its step when the main thread does
            return np.zeros(len(graph.step_start_node))
        reach = np.maximum.accumulate(np.where(graph.device.call >= 0, self.device_end_ns, NEVER))
        until, since = graph.host.first_op[graph.step_end_node], graph.host.first_op[graph.step_start_node]
        ends: Floats = np.where(until > 0, reach[np.maximum(until - 1, 0)], NEVER)
        begins = np.where(since > 0, reach[np.maximum(since - 1, 0)], NEVER)
        begins = np.where(begins > NEVER / 2, begins, self.node_end_ns[graph.step_start_node])
        return np.maximum(ends - begins, 0.0)

    @property
    def step_ns(self) -> float:
        """Typical step time."""
        return max(self.host_device_step_ns, *self.graph.limits_ns.values(), 0.0)

    @property
    def host_device_step_ns(self) -> float:
        """Typical step time from host and device alone, without other limits such as workers."""
        graph = self.graph
        if graph.steps.detected_by == "whole run":
            last = self.device_end_ns[graph.device.call >= 0].max(initial=NEVER)
            return float(
                max(self.node_end_ns[graph.step_end_node[-1]], last) - self.node_end_ns[graph.step_start_node[0]]
            )
        burst = graph.steps.burst
        return max(burst_median(self.host_steps_ns, burst), burst_median(self.device_steps_ns, burst))


def burst_median(values_ns: Floats, burst: int) -> float:
    """Return the median of the means over groups of `burst` values."""
    return float(np.median(burst_means(np.asarray(values_ns, np.float64), burst)))


def host_step_ns(graph: Graph, before_ns: Floats) -> float:
    """Return the part of a typical step that this host work takes, given per host node."""
    done = np.cumsum(before_ns)
    return burst_median(done[graph.step_end_node] - done[graph.step_start_node], graph.steps.burst)


def device_step_ns(graph: Graph, work: Ints) -> float:
    """Return the time per typical step of device ops whose launches are known."""
    step = graph.step_of[graph.device.call[work]]
    inside = step >= 0
    sums = np.zeros(len(graph.step_start_node))
    np.add.at(sums, step[inside], graph.device.dur_ns[work[inside]])
    return burst_median(sums, graph.steps.burst)


def sweep(graph: Graph) -> Schedule:
    """Return the times of everything in a graph of a rank that waits for no other one."""
    try:
        next(rank_sweep(graph, np.empty(0, np.int64)))
    except StopIteration as finished:
        schedule: Schedule = finished.value
        return schedule
    raise AssertionError("a sweep without joint ops yields nothing")


def rank_sweep(graph: Graph, joint_ops: Ints) -> Generator[float, float, Schedule]:
    """Sweep a graph, and at each joint op, yield when it could start alone and receive when it ends.

    Joint ops are collectives, whose end depends on other ranks; they are indices of launched device ops, sorted. Their
    own duration does not count.
    """
    host, device = graph.host, graph.device
    before = sum(host.before_ns.values(), np.zeros(len(host)))
    ends_alone = host.start_ns[0] + np.cumsum(before + host.call_ns)
    if len(device):
        ends, starts, done = yield from _sweep(host, device, ends_alone, joint_ops)
    else:
        ends, starts, done = ends_alone, np.empty(0), np.empty(0)
    begins = np.append(host.start_ns[:1], ends[:-1]) + before
    return Schedule(graph, begins, ends, starts, done)


def waiting_nodes(host: HostNodes) -> Ints:
    """Return the host nodes that wait for the device; between them, the host's times follow from its costs alone."""
    nodes: Ints = np.flatnonzero((host.awaited_op >= 0) | (host.queue_op >= 0))
    return nodes


def add_launches(host: HostNodes, begins_ns: Floats, ops_ns: Floats) -> None:
    """Add to the time of each launched device op when its host node begins; in place, also for several graphs at once.

    `begins_ns`: a row per host node; `ops_ns`: a row per device op.
    """
    launched = slice(host.first_op[0], host.first_op[-1])
    ops_ns[launched] += np.repeat(begins_ns, np.diff(host.first_op), axis=0)


def delayed_ends(ends_alone: Floats, waiting: Ints, delays: Floats) -> Floats:
    """Return the ends of the host nodes: `delays[i]` is added from the i-th waiting node on, `delays[0]` before."""
    ends: Floats = ends_alone + delays[np.searchsorted(waiting, np.arange(len(ends_alone)), side="right")]
    return ends


def _sweep(
    host: HostNodes, device: DeviceOps, ends_alone: Floats, joint_ops: Ints
) -> Generator[float, float, tuple[Floats, Floats, Floats]]:
    """Do the sweep; return the ends of host nodes, and the starts and ends of device ops.

    It is a loop over plain lists, because numpy scalars are several times slower. `ends_alone`: the end of each host
    node if the host never waits. `delay` is what its waits add to these.
    """
    first, last = int(host.first_op[0]), int(host.first_op[-1])
    done = np.where(device.call < 0, device.end_ns, NEVER).tolist()
    dur_ns = device.dur_ns.copy()
    dur_ns[joint_ops] = 0.0
    turn, lag = ((wait_ns + dur_ns).tolist() for wait_ns in (device.gap_ns, device.awaited_delay_ns))
    alone = device.latency_ns + dur_ns
    add_launches(host, ends_alone - host.call_ns, alone)
    alone_ns = alone.tolist()
    earlier, other = device.previous_op.tolist(), device.awaited_op.tolist()
    delay, delays, k = 0.0, [0.0], first
    for until, joint, end_alone, wait, wait_ns, queue_wait, queue_ns in _stops(host, ends_alone, joint_ops, last):
        while k < until:
            end = alone_ns[k] + delay
            p = earlier[k]
            if p >= 0:
                ready = done[p] + turn[k]
                if ready > end:
                    end = ready
            p = other[k]
            if p >= 0:
                ready = done[p] + lag[k]
                if ready > end:
                    end = ready
            done[k] = end
            k += 1
        if joint:
            end = yield done[k - 1]
            dur_ns[k - 1] = end - done[k - 1]
            done[k - 1] = end
            continue
        if wait >= 0:
            needed = done[wait] + wait_ns - end_alone
            if needed > delay:
                delay = needed
        if queue_wait >= 0:
            needed = done[queue_wait] + queue_ns - end_alone
            if needed > delay:
                delay = needed
        delays.append(delay)
    done_ns, starts = np.array(done), np.where(device.call < 0, device.start_ns, NEVER)
    starts[first:last] = done_ns[first:last] - dur_ns[first:last]
    return delayed_ends(ends_alone, waiting_nodes(host), np.array(delays)), starts, done_ns


def _stops(
    host: HostNodes, ends_alone: Floats, joint_ops: Ints, last: int
) -> Iterator[tuple[int, bool, float, int, float, int, float]]:
    """Return where the sweep of device ops stops: after each joint op, for each wait of the host, and at the end.

    A stop: the device op after it, whether it is a joint op, and the host's wait.
    """
    waiting = waiting_nodes(host)
    columns = (
        ends_alone[waiting],
        host.awaited_op[waiting],
        host.return_delay_ns[waiting],
        host.queue_op[waiting],
        host.queue_delay_ns[waiting],
    )
    untils = host.first_op[waiting + 1].tolist()
    waits = [
        (until, False, *wait)
        for until, wait in zip(untils, zip(*(each.tolist() for each in columns), strict=True), strict=True)
    ]
    stops = [(op + 1, True, 0.0, NONE, 0.0, NONE, 0.0) for op in joint_ops.tolist()]
    end = (last, False, 0.0, NONE, 0.0, NONE, 0.0)
    return chain(merge(waits, stops, key=lambda stop: (stop[0], not stop[1])) if stops else waits, (end,))
