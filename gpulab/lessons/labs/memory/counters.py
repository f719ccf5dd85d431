"""Counters of memory that need no GPU: what is kept for backward, what is allocated, how a size grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpulab.lessons.labs.host.operators import Called, saved, watching

if TYPE_CHECKING:
    from torch import nn

MIB = 2**20


def saved_bytes(run: Callable[[], object], model: nn.Module | None = None) -> int:
    """The bytes that running this keeps for a backward pass; those of the model's weights are not counted."""
    return sum(tensor.untyped_storage().nbytes() for tensor in saved(run, model))


@dataclass
class Allocations:
    """What operators asked memory for, in a block that was counted."""

    count: int = 0
    bytes: int = 0
    largest: dict[str, int] = field(default_factory=dict)  # bytes by operator


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Count the storages that operators make within this block, on any device."""
    told = Allocations()

    def count(called: Called) -> None:
        given = _storages((called.args, called.kwargs))
        for size in (size for key, size in _storages(called.result).items() if key not in given and size):
            told.count += 1
            told.bytes += size
            told.largest[str(called.operator)] = told.largest.get(str(called.operator), 0) + size

    with watching(count):
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
