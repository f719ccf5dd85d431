"""Memory counters that need no GPU: bytes saved for backward, allocations, and the exponent of growth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpulab.lessons.labs.host.operators import OperatorCall, observe_operators, saved_tensors

if TYPE_CHECKING:
    from torch import nn

MIB = 2**20


def saved_bytes(run: Callable[[], object], model: nn.Module | None = None) -> int:
    """Return the bytes that `run` saves for a backward pass, without the model's weights."""
    return sum(tensor.untyped_storage().nbytes() for tensor in saved_tensors(run, model))


@dataclass
class AllocationCounts:
    """Allocations of the operators in a block."""

    count: int = 0
    bytes: int = 0
    largest: dict[str, int] = field(default_factory=dict)  # bytes by operator


@contextmanager
def count_allocations() -> Iterator[AllocationCounts]:
    """Count the storages that operators allocate in this block, on any device."""
    counts = AllocationCounts()

    def count(call: OperatorCall) -> None:
        input_storages = _storages((call.args, call.kwargs))
        for size in (size for key, size in _storages(call.result).items() if key not in input_storages and size):
            counts.count += 1
            counts.bytes += size
            counts.largest[str(call.operator)] = counts.largest.get(str(call.operator), 0) + size

    with observe_operators(count):
        yield counts


def _storages(tree: object) -> dict[int, int]:
    import torch
    from torch.utils._pytree import tree_leaves

    storages = [each.untyped_storage() for each in tree_leaves(tree) if torch.is_tensor(each)]
    return {storage._cdata: storage.nbytes() for storage in storages}


def growth_exponent(sizes: Mapping[int, float] | Mapping[int, int]) -> float:
    """Fit the exponent of growth over sizes (log-log regression): 2 if twice the size needs four times as much."""
    points = [(math.log(size), math.log(value)) for size, value in sizes.items()]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
