"""The allocations of a program, in order, and a prediction of them for other batch sizes.

A step makes the same allocations in the same order at any batch size, and most grow linearly with it. So two sizes
predict all others: replaying the scaled allocations through the simulated allocator shows whether a size fits, without
running the program. A step may behave differently at another size, so callers run the size that is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpulab.virtual.memory_fit.allocator import CachingAllocator, OutOfGpuMemory

_FREED = -1  # in place of bytes
_EMPTIED = (-1, _FREED, -1)  # torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class AllocationTrace:
    """Allocations and frees in order: (number, bytes, stream) each; allocations of 0 bytes are left out."""

    events: list[tuple[int, int, int]] = field(default_factory=list)
    part_ends: list[int] = field(default_factory=list)  # for each part, the number of events up to its end

    def record_allocation(self, number: int, size: int, stream: int) -> None:
        """Record an allocation."""
        if size:
            self.events.append((number, size, stream))

    def record_free(self, number: int) -> None:
        """Record a free."""
        self.events.append((number, _FREED, -1))

    def record_empty_cache(self) -> None:
        """Record a release of the cache."""
        self.events.append(_EMPTIED)

    def end_part(self) -> None:
        """End a part; later events belong to the next one."""
        self.part_ends.append(len(self.events))

    def part(self, number: int) -> AllocationTrace:
        """Return one part alone."""
        return AllocationTrace(self.events[self.part_ends[number - 1] if number else 0 : self.part_ends[number]])

    def parts_until(self, number: int) -> AllocationTrace:
        """Return all parts up to and including this one."""
        return AllocationTrace(self.events[: self.part_ends[number]], self.part_ends[: number + 1])

    @property
    def allocations(self) -> list[tuple[int, int]]:
        """The allocations in order: bytes and stream."""
        return [(size, stream) for _, size, stream in self.events if size != _FREED]


@dataclass(frozen=True, slots=True, eq=False)
class PredictedAllocations:
    """Predicted allocations at any batch size: those recorded at one size, and the growth of each per sample."""

    trace: AllocationTrace
    batch: int
    bytes_per_sample: np.ndarray  # bytes per sample, by allocation

    def fits(self, batch: int, capacity_bytes: int, non_torch_bytes: int, state_bytes: int = 0) -> bool:
        """Return whether all allocations fit, with `state_bytes` to spare in the last part."""
        recorded = np.array([size for size, _ in self.trace.allocations], np.float64)
        sizes = iter(
            np.maximum(0, np.rint(recorded + self.bytes_per_sample * (batch - self.batch))).astype(np.int64).tolist()
        )
        allocator = CachingAllocator(capacity_bytes, non_torch_bytes)
        blocks = {}
        last_part = self.trace.part_ends[-2] if len(self.trace.part_ends) > 1 else 0
        for index, (number, size, stream) in enumerate(self.trace.events):
            if index == last_part:
                allocator.reset_peak()
            if size != _FREED:
                scaled = next(sizes)
                try:
                    blocks[number] = allocator.allocate(scaled, stream) if scaled else None
                except OutOfGpuMemory:
                    return False
            elif number < 0:
                allocator.empty_cache()
            elif (block := blocks.pop(number, None)) is not None:
                allocator.free(block)
        return allocator.max_reserved_bytes + state_bytes <= capacity_bytes - non_torch_bytes

    def largest_fitting(
        self, low: int, high: int, capacity_bytes: int, non_torch_bytes: int, state_bytes: int = 0
    ) -> int:
        """Return the largest batch that fits, from `low`, which fits, and below `high`, which does not."""
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle, capacity_bytes, non_torch_bytes, state_bytes):
                low = middle
            else:
                high = middle
        return low


def predict_allocations(
    one: AllocationTrace, batch: int, other: AllocationTrace, other_batch: int
) -> PredictedAllocations | None:
    """Predict from the same parts at two batch sizes; None if their allocations do not match one to one."""
    slopes = _slopes(one.allocations, batch, other.allocations, other_batch)
    return None if slopes is None else PredictedAllocations(one, batch, slopes)


def predict_from_steps(script: AllocationTrace, batches: Sequence[int]) -> PredictedAllocations | None:
    """Predict from the first step of a model and later steps of several sizes; None if that is not possible.

    Part 0 of `script` is the first step. Part 1 is a later step of the same size, `batches[0]`; the other parts are
    steps of the other sizes. The first step makes the allocations of a later step, and those of the optimizer state,
    which do not depend on the batch. There is no prediction if that is not so, or if the later steps do not match.
    """
    first, steady = script.part(0).allocations, script.part(1).allocations
    for index in reversed(range(1, len(batches))):
        slopes = _slopes(steady, batches[0], script.part(index + 1).allocations, batches[index])
        first_slopes = None if slopes is None else _slopes_of_first_step(steady, slopes, first)
        if slopes is not None and first_slopes is not None:
            return PredictedAllocations(script.parts_until(1), batches[0], np.concatenate([first_slopes, slopes]))
    return None


def _slopes(
    one: Sequence[tuple[int, int]], batch: int, other: Sequence[tuple[int, int]], other_batch: int
) -> np.ndarray | None:
    if len(one) != len(other) or batch == other_batch or any(a[1] != b[1] for a, b in zip(one, other, strict=True)):
        return None
    sizes = np.array([[size for size, _ in each] for each in (one, other)], np.float64)
    slopes: np.ndarray = (sizes[1] - sizes[0]) / (other_batch - batch)
    return slopes


def _slopes_of_first_step(
    steady: Sequence[tuple[int, int]], steady_slopes: np.ndarray, first: Sequence[tuple[int, int]]
) -> np.ndarray | None:
    """Match the allocations of the first step with those of a later one; None if they do not match.

    Matches from the end, because the first step begins with building the model.
    """
    slopes, steady_index = np.zeros(len(first)), len(steady) - 1
    for index in reversed(range(len(first))):
        if steady_index >= 0 and first[index] == steady[steady_index]:
            slopes[index] = steady_slopes[steady_index]
            steady_index -= 1
    return slopes if steady_index < 0 else None
