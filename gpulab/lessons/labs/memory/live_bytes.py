"""Count the bytes of all tensors that operators have created and that still exist, and their peak."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpulab.lessons.labs.host.operators import OperatorCall, observe_operators

MIB = 2**20


@dataclass
class LiveBytes:
    """Bytes of storages that were allocated in a block."""

    bytes: int = 0  # that exist now
    peak_bytes: int = 0


@contextmanager
def count_live_bytes() -> Iterator[LiveBytes]:
    """Count the storages that operators of this block allocate, until they are freed; on any device, also on "meta".

    What existed before the block does not count, and neither do temporaries inside of an operator.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    live = LiveBytes()
    alive: set[int] = set()

    def free(key: int, size: int) -> None:
        alive.discard(key)
        live.bytes -= size

    def add(call: OperatorCall) -> None:
        inputs = {
            each.untyped_storage()._cdata for each in tree_leaves((call.args, call.kwargs)) if torch.is_tensor(each)
        }
        for tensor in tree_leaves(call.result):
            if not torch.is_tensor(tensor):
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in inputs or key in alive:
                continue
            alive.add(key)
            live.bytes += size
            live.peak_bytes = max(live.peak_bytes, live.bytes)
            weakref.finalize(storage, free, key, size)

    with observe_operators(add):
        yield live
