"""Costs that occur only in every N-th step, spread evenly over N steps."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from gpulab.analysis.events.device_work import stream_keys
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.sweep import sweep

_COSTS: WeakKeyDictionary[Graph, dict[str, float]] = WeakKeyDictionary()


def spread_over_steps(graph: Graph, without: Graph, count: float, name: str) -> Graph:
    """Return a graph whose step is the mean of `count` steps: one as in `graph`, the others as in `without`.

    1/N of the cost is added at the start of each step, on the host and on each stream. It counts once, whichever of
    them sets the pace.
    """
    if count <= 1:
        return graph
    return delay_steps(without, _cost_ns(graph, without, name) / count)


def delay_steps(graph: Graph, host_ns: float, *, device_ns: float | None = None) -> Graph:
    """Delay each step by this much: its start on the host, and its first op per stream on the device."""
    first_nodes = np.minimum(graph.step_start_node + 1, len(graph.host) - 1)
    python = graph.host.before_ns["python"].copy()
    python[first_nodes] += host_ns
    delayed = graph.with_host(before_ns={**graph.host.before_ns, "python": python})
    if not len(graph.device):
        return delayed
    gap_ns: Floats = graph.device.gap_ns.copy()
    gap_ns[_first_of_steps(graph)] += host_ns if device_ns is None else device_ns
    return delayed.with_device(gap_ns=gap_ns)


def _cost_ns(graph: Graph, without: Graph, name: str) -> float:
    """Return the cost per step of the work that `without` lacks: two replays, cached, because edits repeat often."""
    costs = _COSTS.setdefault(graph, {})
    if name not in costs:
        costs[name] = max(0.0, sweep(graph).host_device_step_ns - sweep(without).host_device_step_ns)
    return costs[name]


@cached_per_run
def _first_of_steps(graph: Graph) -> Ints:
    """The first device op on each stream in each step."""
    device = graph.device
    step = np.where(device.call >= 0, graph.step_of[np.maximum(device.call, 0)], -1)
    inside = np.flatnonzero(step >= 0)
    keys = np.stack([step[inside], stream_keys(graph.work)[inside]], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    return inside[first]
