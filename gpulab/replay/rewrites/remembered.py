"""What of a graph no rewrite changes is worked out once per run: which work is a copy, which wait is whose."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from gpulab.replay.graph import Graph
from gpulab.run import Run

Found = TypeVar("Found")


def remembered(find: Callable[[Graph], Found]) -> Callable[[Graph], Found]:
    """Ask once per run. Only for what follows from the run and the order of its calls, not from costs."""
    known: WeakKeyDictionary[Run, tuple[Any, Any, Found]] = WeakKeyDictionary()

    @wraps(find)
    def ask(graph: Graph) -> Found:
        told = known.get(graph.run)
        # The same run may have been cut into other steps: then it is another graph.
        if told is None or told[0] is not graph.host.event or told[1] is not graph.step_first:
            told = graph.host.event, graph.step_first, find(graph)
            known[graph.run] = told
        return told[2]

    return ask
