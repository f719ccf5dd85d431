"""Count the collectives that a rank takes part in, and their bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KINDS = {
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
}


@dataclass(frozen=True)
class Transfer:
    """One call of a collective, or of a send or receive, on one rank."""

    kind: str
    bytes: int  # of its message, as nccl-tests defines it: the largest tensor, the gathered one for an all-gather


@dataclass
class RankTraffic:
    """The transfers of a rank, in order."""

    transfers: list[Transfer] = field(default_factory=list)

    def count(self, *kinds: str) -> int:
        """Return the number of transfers of these kinds, or of all."""
        return len(self._of(kinds))

    def total_bytes(self, *kinds: str) -> int:
        """Return the bytes of the messages of these kinds, or of all."""
        return sum(transfer.bytes for transfer in self._of(kinds))

    def _of(self, kinds: tuple[str, ...]) -> list[Transfer]:
        return [transfer for transfer in self.transfers if not kinds or transfer.kind in kinds]


@contextlib.contextmanager
def count_traffic() -> Iterator[RankTraffic]:
    """Count the collectives of this process within the block.

    Below Python, collectives are operators, which a dispatch mode sees, also those that DistributedDataParallel starts
    from C++. Communication hooks may call `all_reduce` from a thread of gloo, which no mode sees: those are counted at
    `torch.distributed.all_reduce`.
    """
    import torch
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    traffic, thread, all_reduce = RankTraffic(), threading.get_ident(), dist.all_reduce

    class Counter(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "c10d":
                name = func._schema.name.partition("::")[2]
                sizes = [each.nbytes for each in _tensors(args) if torch.is_tensor(each)]
                if name in KINDS and sizes:
                    traffic.transfers.append(Transfer(KINDS[name], _message_bytes(KINDS[name], args, sizes)))
            return func(*args, **(kwargs or {}))

    def counted_all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            traffic.transfers.append(Transfer("all-reduce", tensor.nbytes))
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = counted_all_reduce
    try:
        with Counter():
            yield traffic
    finally:
        dist.all_reduce = all_reduce


def _message_bytes(kind: str, args: Any, sizes: list[int]) -> int:
    """Return the bytes of a message: all gathered or scattered parts together, if they are separate tensors."""
    if kind in ("all-gather", "reduce-scatter"):
        totals = [sum(int(each.nbytes) for each in _tensors(argument)) for argument in args[:2]]
        return max(totals)
    return sum(sizes)


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "nbytes"):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
