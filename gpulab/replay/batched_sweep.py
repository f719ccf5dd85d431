"""Sweep many graphs of one run at once: the draws of a range differ only in their costs.

One pass with a vector per time costs about as much as eight single sweeps, however many draws there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.sweep import NEVER, Schedule, sweep

WIDTH = 128  # maximum number of graphs in one pass
MAX_BYTES = 200 * 2**20  # maximum size of all columns
MIN_BATCH = 8  # fewer graphs than this are swept one by one
_COLUMNS = 9  # float columns per host node or device op


def batch_step_times(graphs: Sequence[Graph]) -> list[float]:
    """Return the typical step time of each graph, equal to `swept(graph).step_ns`."""
    size = sum(len(track) for graph in graphs[:1] for track in (graph.host, graph.device))
    width = min(WIDTH, MAX_BYTES // max(1, 8 * _COLUMNS * size))
    if len(graphs) < MIN_BATCH or width < MIN_BATCH or not len(graphs[0].device) or not _same_dependencies(graphs):
        return [sweep(graph).step_ns for graph in graphs]
    times_ns: list[float] = []
    for start in range(0, len(graphs), width):
        times_ns += _sweep_batch(graphs[start : start + width])
    return times_ns


def _same_dependencies(graphs: Sequence[Graph]) -> bool:
    """Return whether the graphs differ only in their costs: the same waits for the same work."""
    first = graphs[0]
    for other in graphs[1:]:
        pairs = [
            (getattr(first.host, name), getattr(other.host, name)) for name in ("awaited_op", "queue_op", "first_op")
        ]
        pairs += [
            (getattr(first.device, name), getattr(other.device, name)) for name in ("call", "previous_op", "awaited_op")
        ]
        if any(
            column is not other_column and not np.array_equal(column, other_column) for column, other_column in pairs
        ):
            return False
    return True


def _sweep_batch(graphs: Sequence[Graph]) -> list[float]:
    first = graphs[0]
    ends, done = _sweep_columns(graphs)
    begins = np.zeros(len(first.host))  # not needed for the step time
    return [
        Schedule(graph, begins, ends[:, index], begins, done[:, index]).step_ns for index, graph in enumerate(graphs)
    ]


def _column(graphs: Sequence[Graph], of: Callable[[Graph], Floats]) -> Floats:
    """Stack a column: one row per host node or device op, one column per graph."""
    return np.ascontiguousarray(np.stack([of(graph) for graph in graphs], axis=1))


def _sweep_columns(graphs: Sequence[Graph]) -> tuple[Floats, Floats]:
    """Return the end of each host node and of each device op, per graph; the same sweep as for one graph."""
    host, device = graphs[0].host, graphs[0].device
    before = _column(graphs, lambda graph: sum(graph.host.before_ns.values(), np.zeros(len(graph.host))))
    call_ns, return_delay_ns, queue_delay_ns = (
        _column(graphs, lambda graph, name=name: getattr(graph.host, name))  # type: ignore[misc]
        for name in ("call_ns", "return_delay_ns", "queue_delay_ns")
    )
    dur, latency, gap, delay = (
        _column(graphs, lambda graph, name=name: getattr(graph.device, name))  # type: ignore[misc]
        for name in ("dur_ns", "latency_ns", "gap_ns", "awaited_delay_ns")
    )
    fixed = device.call < 0
    done = np.where(fixed[:, None], device.end_ns[:, None], NEVER) + np.zeros(len(graphs))
    ends = np.empty((len(host), len(graphs)))
    previous, awaited = device.previous_op.tolist(), device.awaited_op.tolist()
    awaited_by_host, queue_ops, firsts = host.awaited_op.tolist(), host.queue_op.tolist(), host.first_op.tolist()
    end, ready, larger = np.full(len(graphs), host.start_ns[0]), np.empty(len(graphs)), np.maximum
    for i in range(len(host)):
        begin = end + before[i]
        for k in range(firsts[i], firsts[i + 1]):
            start = done[k]  # a view: writing to it changes `done`
            np.add(begin, latency[k], out=start)
            if (p := previous[k]) >= 0:
                larger(start, np.add(done[p], gap[k], out=ready), out=start)
            if (p := awaited[k]) >= 0:
                larger(start, np.add(done[p], delay[k], out=ready), out=start)
            start += dur[k]
        end = np.add(begin, call_ns[i], out=ends[i])
        if (p := awaited_by_host[i]) >= 0:
            larger(end, np.add(done[p], return_delay_ns[i], out=ready), out=end)
        if (p := queue_ops[i]) >= 0:
            larger(end, np.add(done[p], queue_delay_ns[i], out=ready), out=end)
    return ends, done
