"""Collections that grow by tensors with their autograd graphs, or by small tensors in large buffers: memory leaks.

A detached loss may be a small tensor in a large buffer: mse_loss computes the mean in the buffer of all elements.

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
MIN_BUFFER_BYTES, MIN_BUFFER_RATIO = 1 << 16, 8  # of a buffer: in bytes, and as a multiple of the tensor in it


@dataclass(frozen=True)
class _Collection:
    """A collection at its first inspection and now; bytes are None if counting them took too long."""

    first_length: int
    first_bytes: int | None
    length: int
    bytes: int | None
    kind: str  # of tables.HOLDERS: "graph" or "buffer"


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
        deadline, noted = Deadline(LIMIT_S), set[int]()
        for frame in user_frames(innermost):
            for space in (frame_variables(frame), frame.f_globals):
                self._note(space, deadline, noted)

    def rows(self) -> Rows:
        """The collections that grew, as rows of tables.HOLDERS: number of new entries, and memory kept by these."""
        grown = [(name, entry) for name, entry in self._collections.items() if entry.length > entry.first_length]
        grown.sort(key=lambda row: -_growth(row[1]))
        return HOLDERS.rows(
            {
                "who": [name for name, _ in grown],
                "kind": [entry.kind for _, entry in grown],
                "device": [-1] * len(grown),
                "bytes": [_growth(entry) for _, entry in grown],
                "tensors": [entry.length - entry.first_length for _, entry in grown],
                "largest": [None] * len(grown),
            }
        )

    def _note(self, space: dict[str, Any], deadline: Deadline, noted: set[int]) -> None:
        """Note the collections of a namespace, each once: the variables of a module are those of its frame, too."""
        import torch

        for name, value in list(space.items()):
            if name.startswith("_") or type(value) not in (list, deque, dict) or id(value) in noted:
                continue
            noted.add(id(value))
            with torch._C.DisableTorchFunction():
                if (kind := _kind_of_leak(value, torch.Tensor)) is not None:
                    self._count(name, len(value), _kept_bytes(value, deadline), kind)

    def _count(self, name: str, length: int, kept_bytes: int | None, kind: str) -> None:
        previous = self._collections.get(name)
        if previous is None or length <= previous.length:  # a collection that was emptied starts again
            self._collections[name] = _Collection(length, kept_bytes, length, kept_bytes, kind)
        else:
            self._collections[name] = replace(previous, length=length, bytes=kept_bytes)


def _growth(entry: _Collection) -> int:
    if entry.bytes is None or entry.first_bytes is None:
        return -1
    return max(0, entry.bytes - entry.first_bytes)


def _kind_of_leak(collection: Any, tensor: type) -> str | None:
    """What the newest entry keeps alive: "graph", or a "buffer" much larger than the tensor in it; None for neither."""
    if not collection:
        return None
    newest = next(reversed(collection.values())) if type(collection) is dict else collection[-1]
    entries = newest if type(newest) in (tuple, list) else (newest,)
    tensors = [each for each in entries[:8] if issubclass(type(each), tensor)]
    if any([each.grad_fn is not None for each in tensors]):
        return "graph"
    return "buffer" if any([_buffer_bytes(each) >= MIN_BUFFER_RATIO * each.nbytes for each in tensors]) else None


def _buffer_bytes(tensor: Any) -> int:
    """Size of the storage of a tensor, if it is large; -1 if it is small, or if there is none."""
    try:
        size = tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):  # sparse and fake tensors have no storage
        return -1
    return int(size) if size >= MIN_BUFFER_BYTES else -1


def _kept_bytes(collection: Any, deadline: Deadline) -> int | None:
    """Bytes kept alive by its tensors and their graphs, each storage once."""
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
