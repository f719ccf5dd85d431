"""How much work a step gives the device at once: operators, arithmetic, memory kept, tiles and waves, room.

Counts, all of them: the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from gpulab.hardware.lookup import resolve
from gpulab.lessons.labs.host.operators import Called, watching
from gpulab.virtual.memory_fit.measuring import Measured
from gpulab.wording import percent, plural, size

MULTIPROCESSORS = resolve("h100").multiprocessors
TILE = 128  # rows and columns of the result that one thread block computes, usually


@dataclass(frozen=True, kw_only=True)
class Work:
    """The operators that a piece of code called: each is a kernel or a few on a GPU."""

    ops: int
    flops: int  # of matrix products and convolutions; a multiply-add as two
    largest_flops: int  # of the operator that has most
    by_name: Mapping[str, int]  # how often each was called

    @property
    def products(self) -> int:
        """How many of them are matrix products or convolutions."""
        return sum(count for name, count in self.by_name.items() if name in _PRODUCTS)


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


def work_of(code: Callable[[], object]) -> Work:
    """What `code` has the device do, counted as PyTorch hands it out; views and bare allocations are not work."""
    from torch.utils.flop_counter import flop_registry

    names: Counter[str] = Counter()
    arithmetic: list[int] = []

    def count(called: Called) -> None:
        if called.is_work:
            names[called.name] += 1
            formula = flop_registry.get(called.operator.overloadpacket)
            arithmetic.append(int(formula(*called.args, **called.kwargs, out_val=called.result)) if formula else 0)

    with watching(count):
        code()
    return Work(ops=names.total(), flops=sum(arithmetic), largest_flops=max(arithmetic, default=0), by_name=dict(names))


def most_kept_bytes(code: Callable[[], object]) -> int:
    """The most that backward needs at any one time of what forward computed; parameters are there anyway."""
    import torch

    kept: Counter[int] = Counter()  # how many hold each piece of memory
    held_bytes = most_bytes = 0

    class Kept:
        """One tensor that waits for backward, and says when it is let go."""

        def __init__(self, tensor: Any) -> None:
            nonlocal held_bytes, most_bytes
            self.tensor = tensor
            owner = tensor if tensor._base is None else tensor._base  # a layer keeps its weight as a view
            self.counts = not (owner.is_leaf and owner.requires_grad)
            if self.counts:
                self.place, self.bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
                held_bytes += self.bytes * (not kept[self.place])
                kept[self.place] += 1
                most_bytes = max(most_bytes, held_bytes)

        def __del__(self) -> None:
            nonlocal held_bytes
            if self.counts:
                kept[self.place] -= 1
                held_bytes -= self.bytes * (not kept[self.place])

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda each: each.tensor):
        code()
    return most_bytes


@dataclass(frozen=True, kw_only=True)
class Tiled:
    """A matrix product cut into tiles, each the work of one thread block."""

    blocks: int
    waves: int  # turns in which the multiprocessors work them off, one block each at a time
    filled_frac: float  # of the places in those turns that compute something wanted, 0-1

    def __str__(self) -> str:
        waves = f"{self.waves:>2} {plural(self.waves, 'wave'):5}"
        return f"{self.blocks:>5,} blocks in {waves}, {percent(self.filled_frac)} of the room in them is used"


def tiled(rows: int, columns: int, tile: int = TILE, multiprocessors: int = MULTIPROCESSORS) -> Tiled:
    """How a result of this size is cut up. A tile over the edge costs a whole one, and so does a wave not full."""
    blocks = ceil(rows / tile) * ceil(columns / tile)
    waves = ceil(blocks / multiprocessors)
    return Tiled(blocks=blocks, waves=waves, filled_frac=rows * columns / (waves * multiprocessors * tile**2))


class Room:
    """A GPU's memory with a training step in it, by a straight line: so much in any case, and so much a sample.

    `peak(batch)` is a training step of that size: it gives the most memory in use, or raises what PyTorch raises.
    `tries` counts them, as each costs a start of the program.
    """

    def __init__(self, capacity_bytes: int, fixed_bytes: float, sample_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self._fixed_bytes, self._sample_bytes = fixed_bytes, sample_bytes
        self.tries = 0

    def peak(self, batch: int) -> int:
        """Bytes in use at most with this batch. Raises torch.OutOfMemoryError where there is no room for it."""
        import torch

        self.tries += 1
        needed_bytes = self._needed_bytes(batch)
        if needed_bytes > self.capacity_bytes:
            raise torch.OutOfMemoryError(
                f"out of memory: a batch of {batch:,} needs {size(needed_bytes)}, "
                f"and there are {size(self.capacity_bytes)}"
            )
        return needed_bytes

    def is_largest(self, batch: int) -> bool:
        """Whether this batch has room, and one sample more has not; that is no try."""
        return self._needed_bytes(batch) <= self.capacity_bytes < self._needed_bytes(batch + 1)

    def judged(self, batch: int) -> str:
        """The same in words."""
        if self._needed_bytes(batch) > self.capacity_bytes:
            return "has no room"
        return "the largest that has room" if self.is_largest(batch) else "has room, and so has a larger one"

    def _needed_bytes(self, batch: int) -> int:
        return ceil(self._fixed_bytes + self._sample_bytes * batch)


def room_of(tried: Sequence[Measured]) -> Room:
    """The memory of a GPU on which a step was tried, as a straight line through the two smallest batches."""
    first, second = tried[:2]
    sample_bytes = (second.peak.bytes - first.peak.bytes) / (second.work - first.work)
    fixed_bytes = first.peak.bytes - sample_bytes * first.work
    return Room(first.usable_bytes - first.outside_bytes, fixed_bytes, sample_bytes)
