"""Many graphs of one run swept at once: the draws of a range differ in their costs and share everything else.

One pass over the stops with a vector for each time costs what some eight single sweeps do, however many the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.sweep import NEVER, Timed, swept

WIDTH = 128  # graphs at once, at most
MOST_BYTES = 200 * 2**20  # of all columns together
FEW = 8  # fewer graphs are swept one by one
_COLUMNS = 9  # of floats, for each stop or piece of work


def steps_ns(graphs: Sequence[Graph]) -> list[float]:
    """The typical step of each graph, as `swept(graph).step_ns` has it."""
    size = sum(len(part) for graph in graphs[:1] for part in (graph.host, graph.device))
    width = min(WIDTH, MOST_BYTES // max(1, 8 * _COLUMNS * size))
    if len(graphs) < FEW or width < FEW or not len(graphs[0].device) or not _alike(graphs):
        return [swept(graph).step_ns for graph in graphs]
    told: list[float] = []
    for first in range(0, len(graphs), width):
        told += _swept(graphs[first : first + width])
    return told


def _alike(graphs: Sequence[Graph]) -> bool:
    """Whether they differ in their costs alone: the same waits for the same work."""
    one = graphs[0]
    for other in graphs[1:]:
        pairs = [(getattr(one.host, name), getattr(other.host, name)) for name in ("wait", "room", "first")]
        pairs += [(getattr(one.device, name), getattr(other.device, name)) for name in ("call", "before", "after")]
        if any(mine is not theirs and not np.array_equal(mine, theirs) for mine, theirs in pairs):
            return False
    return True


def _swept(graphs: Sequence[Graph]) -> list[float]:
    one = graphs[0]
    ends, done = _in_turn(graphs)
    begins = np.zeros(len(one.host))  # not asked for
    return [Timed(graph, begins, ends[:, place], begins, done[:, place]).step_ns for place, graph in enumerate(graphs)]


def _column(graphs: Sequence[Graph], of: Callable[[Graph], Floats]) -> Floats:
    """One row for each stop or piece of work, one column for each graph."""
    return np.ascontiguousarray(np.stack([of(graph) for graph in graphs], axis=1))


def _in_turn(graphs: Sequence[Graph]) -> tuple[Floats, Floats]:
    """When each stop and each piece of device work ends, in each graph; the same sweep as for one."""
    host, device = graphs[0].host, graphs[0].device
    before = _column(graphs, lambda graph: sum(graph.host.before_ns.values(), np.zeros(len(graph.host))))
    own, wait_ns, room_ns = (
        _column(graphs, lambda graph, name=name: getattr(graph.host, name))  # type: ignore[misc]
        for name in ("own_ns", "wait_ns", "room_ns")
    )
    dur, latency, turn, lag = (
        _column(graphs, lambda graph, name=name: getattr(graph.device, name))  # type: ignore[misc]
        for name in ("dur_ns", "latency_ns", "turn_ns", "lag_ns")
    )
    fixed = device.call < 0
    done = np.where(fixed[:, None], device.end_ns[:, None], NEVER) + np.zeros(len(graphs))
    ends = np.empty((len(host), len(graphs)))
    earlier, other = device.before.tolist(), device.after.tolist()
    waits, rooms, firsts = host.wait.tolist(), host.room.tolist(), host.first.tolist()
    end, ready, larger = np.full(len(graphs), host.at_ns[0]), np.empty(len(graphs)), np.maximum
    for i in range(len(host)):
        begin = end + before[i]
        for k in range(firsts[i], firsts[i + 1]):
            start = done[k]  # a view: what is written to it stays
            np.add(begin, latency[k], out=start)
            if (p := earlier[k]) >= 0:
                larger(start, np.add(done[p], turn[k], out=ready), out=start)
            if (p := other[k]) >= 0:
                larger(start, np.add(done[p], lag[k], out=ready), out=start)
            start += dur[k]
        end = np.add(begin, own[i], out=ends[i])
        if (p := waits[i]) >= 0:
            larger(end, np.add(done[p], wait_ns[i], out=ready), out=end)
        if (p := rooms[i]) >= 0:
            larger(end, np.add(done[p], room_ns[i], out=ready), out=end)
    return ends, done
