"""One sweep in order of time: when everything begins and ends, given the costs in a graph.

The recorded order is a valid order of evaluation, as every wait points back in time; a rewrite changes costs and
drops waits, never the order. A step of a run whose host runs ahead is as long as its device makes it in the end,
although its marks lie closer together until the launch queue is full: the slower of the two paces is the step's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import grouped
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Device, Floats, Graph, Host

NEVER = -1e30


@dataclass(frozen=True, eq=False)
class Timed:
    """When each stop and each piece of device work begins and ends."""

    graph: Graph
    begins_ns: Floats  # of each stop
    ends_ns: Floats
    device_start_ns: Floats
    device_end_ns: Floats

    @property
    def host_steps_ns(self) -> Floats:
        """How long each step is by its marks."""
        lasted: Floats = self.ends_ns[self.graph.step_last] - self.ends_ns[self.graph.step_first]
        return lasted

    @property
    def device_steps_ns(self) -> Floats:
        """How long each step is by the end of its last device work."""
        graph = self.graph
        if not len(self.device_end_ns):
            return np.zeros(len(graph.step_first))
        reach = np.maximum.accumulate(np.where(graph.device.call >= 0, self.device_end_ns, NEVER))
        until, since = graph.host.first[graph.step_last], graph.host.first[graph.step_first]
        ends: Floats = np.where(until > 0, reach[np.maximum(until - 1, 0)], NEVER)
        begins = np.where(since > 0, reach[np.maximum(since - 1, 0)], NEVER)
        begins = np.where(begins > NEVER / 2, begins, self.ends_ns[graph.step_first])
        return np.maximum(ends - begins, 0.0)

    @property
    def step_ns(self) -> float:
        """The typical step."""
        return max(self.own_ns, *self.graph.limits_ns.values(), 0.0)

    @property
    def own_ns(self) -> float:
        """The typical step of host and device themselves, whatever else may limit."""
        graph = self.graph
        if graph.steps.found_by == "whole run":
            last = self.device_end_ns[graph.device.call >= 0].max(initial=NEVER)
            return float(max(self.ends_ns[graph.step_last[-1]], last) - self.ends_ns[graph.step_first[0]])
        burst = graph.steps.burst
        return max(typical(self.host_steps_ns, burst), typical(self.device_steps_ns, burst))


def typical(values_ns: Floats, burst: int) -> float:
    """The median, of means over groups of `burst`."""
    return float(np.median(grouped(np.asarray(values_ns, np.float64), burst)))


def host_step_ns(graph: Graph, before_ns: Floats) -> float:
    """Of some host work before each stop, how much a typical step has."""
    done = np.cumsum(before_ns)
    return typical(done[graph.step_last] - done[graph.step_first], graph.steps.burst)


def device_step_ns(graph: Graph, work: Ints) -> float:
    """Of some device work whose calls are known, how much time a typical step has."""
    step = graph.step_of[graph.device.call[work]]
    inside = step >= 0
    sums = np.zeros(len(graph.step_first))
    np.add.at(sums, step[inside], graph.device.dur_ns[work[inside]])
    return typical(sums, graph.steps.burst)


def swept(graph: Graph) -> Timed:
    """Times of everything in a graph."""
    host, device = graph.host, graph.device
    before = sum(host.before_ns.values(), np.zeros(len(host)))
    if len(device):
        ends, starts, done = _in_turn(host, device, before)
    else:
        ends = host.at_ns[0] + np.cumsum(before + host.own_ns)
        starts = done = np.empty(0)
    begins = np.append(host.at_ns[:1], ends[:-1]) + before
    return Timed(graph, begins, ends, starts, done)


def _in_turn(host: Host, device: Device, before: Floats) -> tuple[Floats, Floats, Floats]:
    """The sweep itself: a loop over plain lists, as numpy's scalars are several times slower."""
    fixed = device.call < 0
    done = np.where(fixed, device.end_ns, NEVER).tolist()
    starts = np.where(fixed, device.start_ns, NEVER).tolist()
    columns = (before, host.own_ns, host.wait, host.wait_ns, host.room, host.room_ns, host.first[:-1], host.first[1:])
    dur, latency, turn, lag = (
        each.tolist() for each in (device.dur_ns, device.latency_ns, device.turn_ns, device.lag_ns)
    )
    earlier, other = device.before.tolist(), device.after.tolist()
    ends, end = [], float(host.at_ns[0])
    for gap, own, wait, wait_ns, room, room_ns, first, last in zip(*(each.tolist() for each in columns), strict=True):
        begin = end + gap
        for k in range(first, last):
            start = begin + latency[k]
            p = earlier[k]
            if p >= 0:
                ready = done[p] + turn[k]
                if ready > start:
                    start = ready
            p = other[k]
            if p >= 0:
                ready = done[p] + lag[k]
                if ready > start:
                    start = ready
            starts[k] = start
            done[k] = start + dur[k]
        end = begin + own
        if wait >= 0:
            ready = done[wait] + wait_ns
            if ready > end:
                end = ready
        if room >= 0:
            ready = done[room] + room_ns
            if ready > end:
                end = ready
        ends.append(end)
    return np.array(ends), np.array(starts), np.array(done)
