"""Collections that grow by tensors with their autograd graphs: what memory leaks of training loops are made of.

The resident size of a process does not show them where an earlier run has left it room to grow into. So a collection
is looked at itself: how long it has become, and how much its graphs keep.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from gpulab.capture.memory.reachable_tensors import Deadline, Reach
from gpulab.capture.user_names import variables
from gpulab.rows import Rows
from gpulab.sensors.host.frames import users_frames
from gpulab.tables import HOLDERS

FIRST_STEP = 8  # looked at in steps 8, 16, 32 and so on: a dozen looks in a long run
LIMIT_S = 0.05  # for one look


@dataclass(frozen=True)
class _Seen:
    """A collection when it was first looked at, and now; bytes are None where counting them took too long."""

    first_length: int
    first_bytes: int | None
    length: int
    bytes: int | None


class Growing:
    """Looks at the loop's own variables now and then, and keeps names and figures only."""

    def __init__(self) -> None:
        self._next = FIRST_STEP
        self._seen: dict[str, _Seen] = {}

    def look(self, step: int, innermost: FrameType | None) -> None:
        """Where a step begins, in the recorded thread."""
        if step < self._next or "torch" not in sys.modules:
            return
        self._next = 2 * step
        deadline, namespaces = Deadline(LIMIT_S), set[int]()
        for frame in users_frames(innermost):
            for space in (variables(frame), frame.f_globals):
                if id(space) not in namespaces:
                    namespaces.add(id(space))
                    self._note(space, deadline)

    def rows(self) -> Rows:
        """The collections that grew, as rows of tables.HOLDERS: by how many entries, and by how much these keep."""
        grew = [(name, seen) for name, seen in self._seen.items() if seen.length > seen.first_length]
        grew.sort(key=lambda each: -_growth(each[1]))
        return HOLDERS.rows(
            {
                "who": [name for name, _ in grew],
                "kind": ["graph"] * len(grew),
                "device": [-1] * len(grew),
                "bytes": [_growth(seen) for _, seen in grew],
                "tensors": [seen.length - seen.first_length for _, seen in grew],
                "largest": [None] * len(grew),
            }
        )

    def _note(self, space: dict[str, Any], deadline: Deadline) -> None:
        import torch

        for name, value in list(space.items()):
            if name.startswith("_") or type(value) not in (list, deque, dict):
                continue
            with torch._C.DisableTorchFunction():
                if _keeps_a_graph(value, torch.Tensor):
                    self._count(name, len(value), _kept(value, deadline))

    def _count(self, name: str, length: int, kept: int | None) -> None:
        known = self._seen.get(name)
        if known is None or length <= known.length:  # one that is emptied now and then starts anew
            self._seen[name] = _Seen(length, kept, length, kept)
        else:
            self._seen[name] = replace(known, length=length, bytes=kept)


def _growth(seen: _Seen) -> int:
    if seen.bytes is None or seen.first_bytes is None:
        return -1
    return max(0, seen.bytes - seen.first_bytes)


def _keeps_a_graph(collection: Any, tensor: type) -> bool:
    """Whether the newest entry is, or holds directly, a tensor with a graph."""
    if not collection:
        return False
    newest = next(reversed(collection.values())) if type(collection) is dict else collection[-1]
    entries = newest if type(newest) in (tuple, list) else (newest,)
    return any(issubclass(type(each), tensor) and each.grad_fn is not None for each in entries[:8])


def _kept(collection: Any, deadline: Deadline) -> int | None:
    """The bytes that the graphs of its tensors keep, each storage once."""
    reach = Reach(deadline)
    tensors = list(reach.tensors(collection))
    storages: dict[int, int] = {}
    for each in (*tensors, *reach.saved(tensors)):
        try:
            storage = each.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse, fake: no storage of their own
            continue
        storages[storage._cdata] = storage.nbytes()
    return None if deadline.passed else sum(storages.values())
