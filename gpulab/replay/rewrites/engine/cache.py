"""Cache per run: what a rewrite reads from the recording is computed once, not for each draw of the unknowns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Graph
from gpulab.run import Run

T = TypeVar("T")


def cached_per_run(compute: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Cache the result of a function of a graph for as long as its run lives.

    Only for functions of data that edits do not change: the run, its steps, the launches of each host node. Not for
    functions of costs or waits.
    """
    results: WeakKeyDictionary[Run, tuple[Ints, T]] = WeakKeyDictionary()

    @wraps(compute)
    def cached(graph: Graph) -> T:
        # Another choice of steps gives another graph of the same run; edits keep this very array.
        key = graph.host.first_op
        entry = results.get(graph.run)
        if entry is None or entry[0] is not key:
            entry = key, compute(graph)
            results[graph.run] = entry
        return entry[1]

    return cached


def mark_applied(graph: Graph, change: str) -> Graph:
    """Return the graph with a note of this change, which later rewrites can read."""
    return replace(graph, applied=graph.applied | {change})
