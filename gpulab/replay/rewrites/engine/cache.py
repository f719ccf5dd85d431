"""What a rewrite reads from the recording is worked out once for a run, not once for each draw of the unknowns."""

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


def once(read: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Keep what a function tells of a graph, as long as its run lives.

    For functions of what edits leave alone: the run, its steps, which work each stop calls for. Not of costs or waits.
    """
    known: WeakKeyDictionary[Run, tuple[Ints, T]] = WeakKeyDictionary()

    @wraps(read)
    def kept(graph: Graph) -> T:
        # Another choice of steps makes another graph of the same run; edits pass this very array on.
        key = graph.host.first
        found = known.get(graph.run)
        if found is None or found[0] is not key:
            found = key, read(graph)
            known[graph.run] = found
        return found[1]

    return kept


def noting(graph: Graph, change: str) -> Graph:
    """The graph with word for later rewrites of what this one changed."""
    return replace(graph, made=graph.made | {change})
