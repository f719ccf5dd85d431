"""Sweep many graphs of one run at once: the draws of a range differ only in their costs.

One pass with a vector per time costs about as much as eight single sweeps, however many draws there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.sweep import NEVER, Timed, swept

WIDTH = 128  # maximum number of graphs in one pass
MOST_BYTES = 200 * 2**20  # maximum size of all columns
FEW = 8  # fewer graphs than this are swept one by one
_COLUMNS = 9  # float columns per host node or device op


def steps_ns(graphs: Sequence[Graph]) -> list[float]:
    """Return the typical step time of each graph, equal to `swept(graph).step_ns`."""
    size = sum(len(track) for graph in graphs[:1] for track in (graph.host, graph.device))
    width = min(WIDTH, MOST_BYTES // max(1, 8 * _COLUMNS * size))
    if len(graphs) < FEW or width < FEW or not len(graphs[0].device) or not _same_dependencies(graphs):
        return [swept(graph).step_ns for graph in graphs]
    times_ns: list[float] = []
    for start in range(0, len(graphs), width):
        times_ns += _sweep_batch(graphs[start : start + width])
    return times_ns


def _same_dependencies(graphs: Sequence[Graph]) -> bool:
    """Return whether the graphs differ only in their costs: the same waits for the same work."""
    first = graphs[0]
    for other in graphs[1:]:
        pairs = [(getattr(first.host, name), getattr(other.host, name)) for name in ("wait", "room", "first")]
        pairs += [(getattr(first.device, name), getattr(other.device, name)) for name in ("call", "before", "after")]
        if any(
            column is not other_column and not np.array_equal(column, other_column) for column, other_column in pairs
        ):
            return False
    return True


def _sweep_batch(graphs: Sequence[Graph]) -> list[float]:
    first = graphs[0]
    ends, done = _sweep_columns(graphs)
    begins = np.zeros(len(first.host))  # not needed for the step time
    return [Timed(graph, begins, ends[:, index], begins, done[:, index]).step_ns for index, graph in enumerate(graphs)]


def _column(graphs: Sequence[Graph], of: Callable[[Graph], Floats]) -> Floats:
    """Stack a column: one row per host node or device op, one column per graph."""
    return np.ascontiguousarray(np.stack([of(graph) for graph in graphs], axis=1))


def _sweep_columns(graphs: Sequence[Graph]) -> tuple[Floats, Floats]:
    """Return the end of each host node and of each device op, per graph; the same sweep as for one graph."""
    host, device = graphs[0].host, graphs[0].device
    before = _column(graphs, lambda graph: sum(graph.host.before_ns.values(), np.zeros(len(graph.host))))
    own_ns, wait_ns, room_ns = (
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
            start = done[k]  # a view: writing to it changes `done`
            np.add(begin, latency[k], out=start)
            if (p := earlier[k]) >= 0:
                larger(start, np.add(done[p], turn[k], out=ready), out=start)
            if (p := other[k]) >= 0:
                larger(start, np.add(done[p], lag[k], out=ready), out=start)
            start += dur[k]
        end = np.add(begin, own_ns[i], out=ends[i])
        if (p := waits[i]) >= 0:
            larger(end, np.add(done[p], wait_ns[i], out=ready), out=end)
        if (p := rooms[i]) >= 0:
            larger(end, np.add(done[p], room_ns[i], out=ready), out=end)
    return ends, done
