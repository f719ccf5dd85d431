"""Done in every N-th step only: what it costs is then spread over N steps."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from gpulab.analysis.events.device_work import streams
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.sweep import swept

_COSTS: WeakKeyDictionary[Graph, dict[str, float]] = WeakKeyDictionary()


def every(graph: Graph, without: Graph, count: float, name: str) -> Graph:
    """A graph whose step is the mean over `count` steps, of which one is as in `graph` and the others as in `without`.

    The N-th part of what one step loses by it stands at the beginning of every step: on the host and on each stream,
    so that it counts once, whichever of them sets the pace.
    """
    if count <= 1:
        return graph
    return held_up(without, _cost_ns(graph, without, name) / count)


def held_up(graph: Graph, by_ns: float, *, device_ns: float | None = None) -> Graph:
    """The graph with every step begun so much later on the host, and its first work on each stream on the device."""
    opens = np.minimum(graph.step_first + 1, len(graph.host) - 1)
    python = graph.host.before_ns["python"].copy()
    python[opens] += by_ns
    held = graph.with_host(before_ns={**graph.host.before_ns, "python": python})
    if not len(graph.device):
        return held
    turn: Floats = graph.device.turn_ns.copy()
    turn[_first_of_steps(graph)] += by_ns if device_ns is None else device_ns
    return held.with_device(turn_ns=turn)


def _cost_ns(graph: Graph, without: Graph, name: str) -> float:
    """What a step loses by it; two replays, asked once for a graph that is edited again and again."""
    known = _COSTS.setdefault(graph, {})
    if name not in known:
        known[name] = max(0.0, swept(graph).own_ns - swept(without).own_ns)
    return known[name]


@once
def _first_of_steps(graph: Graph) -> Ints:
    """The first work on each stream that each step calls for."""
    device = graph.device
    step = np.where(device.call >= 0, graph.step_of[np.maximum(device.call, 0)], -1)
    inside = np.flatnonzero(step >= 0)
    keys = np.stack([step[inside], streams(graph.work)[inside]], axis=1)
    _, first = np.unique(keys, axis=0, return_index=True)
    return inside[first]
