"""Counters of memory that need no GPU: what is kept for backward, what is allocated, how a size grows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

MIB = 2**20


def saved_bytes(run: Callable[[], object], model: nn.Module | None = None) -> int:
    """What running this keeps for a backward pass: every storage once, and none that the model's weights lie in.

    It counts on any device, also on "meta", where tensors have sizes and no memory.
    """
    import torch

    weights = {each.untyped_storage()._cdata for each in (model.parameters() if model is not None else ())}
    kept: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, so that no other takes its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return sum(storage.nbytes() for storage in kept.values())


@dataclass
class Allocations:
    """What operators asked memory for, in a block that was counted."""

    count: int = 0
    bytes: int = 0
    largest: dict[str, int] = field(default_factory=dict)  # bytes by operator


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Count the storages that operators make within this block, on any device."""
    from torch.utils._python_dispatch import TorchDispatchMode

    told = Allocations()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            given = _storages((args, kwargs or {}))
            for size in (size for key, size in _storages(made).items() if key not in given and size):
                told.count += 1
                told.bytes += size
                told.largest[str(func)] = told.largest.get(str(func), 0) + size
            return made

    with Counting():
        yield told


def _storages(tree: object) -> dict[int, int]:
    import torch
    from torch.utils._pytree import tree_leaves

    found = [each.untyped_storage() for each in tree_leaves(tree) if torch.is_tensor(each)]
    return {storage._cdata: storage.nbytes() for storage in found}


def exponent(sizes: Mapping[int, float] | Mapping[int, int]) -> float:
    """By which power a quantity grows with the size it is told for: 2 where twice the size takes four times as much."""
    points = [(math.log(size), math.log(value)) for size, value in sizes.items()]
    across = sum(x for x, _ in points) / len(points)
    up = sum(y for _, y in points) / len(points)
    return sum((x - across) * (y - up) for x, y in points) / sum((x - across) ** 2 for x, _ in points)


def rises(values: Iterable[int], skip: int = 3) -> list[int]:
    """By how much each value is above the one before, after the first few, in which optimizers get their state."""
    settled = list(values)[skip:]
    return [after - before for before, after in itertools.pairwise(settled)]
