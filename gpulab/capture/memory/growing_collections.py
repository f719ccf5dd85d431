"""Collections that grow by tensors with their autograd graphs: the usual memory leak of training loops.

The resident size of a process does not show such a leak if an earlier run has left free memory in the heap. Therefore
the collections themselves are inspected: their length, and the memory that their graphs keep alive.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from gpulab.capture.hooks.user_variables import frame_variables
from gpulab.capture.memory.reachable_tensors import Deadline, TensorSearch
from gpulab.rows import Rows
from gpulab.sensors.host.frames import user_frames
from gpulab.tables import HOLDERS

FIRST_INSPECTED_STEP = 8  # inspected in steps 8, 16, 32 and so on: a dozen times in a long run
LIMIT_S = 0.05  # for one inspection


@dataclass(frozen=True)
class _Collection:
    """A collection at its first inspection and now; bytes are None if counting them took too long."""

    first_length: int
    first_bytes: int | None
    length: int
    bytes: int | None


class GrowingCollections:
    """Inspects the variables of the loop at some steps; keeps names and numbers only."""

    def __init__(self) -> None:
        self._next = FIRST_INSPECTED_STEP
        self._collections: dict[str, _Collection] = {}

    def inspect(self, step: int, innermost: FrameType | None) -> None:
        """Inspect at the start of a step, in the recorded thread."""
        if step < self._next or "torch" not in sys.modules:
            return
        self._next = 2 * step
        deadline, namespaces = Deadline(LIMIT_S), set[int]()
        for frame in user_frames(innermost):
            for space in (frame_variables(frame), frame.f_globals):
                if id(space) not in namespaces:
                    namespaces.add(id(space))
                    self._note(space, deadline)

    def rows(self) -> Rows:
        """The collections that grew, as rows of tables.HOLDERS: number of new entries, and memory kept by these."""
        grown = [(name, entry) for name, entry in self._collections.items() if entry.length > entry.first_length]
        grown.sort(key=lambda row: -_growth(row[1]))
        return HOLDERS.rows(
            {
                "who": [name for name, _ in grown],
                "kind": ["graph"] * len(grown),
                "device": [-1] * len(grown),
                "bytes": [_growth(entry) for _, entry in grown],
                "tensors": [entry.length - entry.first_length for _, entry in grown],
                "largest": [None] * len(grown),
            }
        )

    def _note(self, space: dict[str, Any], deadline: Deadline) -> None:
        import torch

        for name, value in list(space.items()):
            if name.startswith("_") or type(value) not in (list, deque, dict):
                continue
            with torch._C.DisableTorchFunction():
                if _keeps_a_graph(value, torch.Tensor):
                    self._count(name, len(value), _graph_bytes(value, deadline))

    def _count(self, name: str, length: int, graph_bytes: int | None) -> None:
        previous = self._collections.get(name)
        if previous is None or length <= previous.length:  # a collection that was emptied starts again
            self._collections[name] = _Collection(length, graph_bytes, length, graph_bytes)
        else:
            self._collections[name] = replace(previous, length=length, bytes=graph_bytes)


def _growth(entry: _Collection) -> int:
    if entry.bytes is None or entry.first_bytes is None:
        return -1
    return max(0, entry.bytes - entry.first_bytes)


def _keeps_a_graph(collection: Any, tensor: type) -> bool:
    """Whether the newest entry is, or directly contains, a tensor with a graph."""
    if not collection:
        return False
    newest = next(reversed(collection.values())) if type(collection) is dict else collection[-1]
    entries = newest if type(newest) in (tuple, list) else (newest,)
    return any([issubclass(type(each), tensor) and each.grad_fn is not None for each in entries[:8]])


def _graph_bytes(collection: Any, deadline: Deadline) -> int | None:
    """Bytes kept alive by the graphs of its tensors, each storage once."""
    reach = TensorSearch(deadline)
    tensors = list(reach.tensors(collection))
    storages: dict[int, int] = {}
    for tensor in (*tensors, *reach.saved_tensors(tensors)):
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse and fake tensors have no storage
            continue
        storages[storage._cdata] = storage.nbytes()
    return None if deadline.passed else sum(storages.values())
