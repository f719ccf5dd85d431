"""Count the work of a step by batch size: operators, FLOPs, saved activations, tiles and waves, free memory.

All of these are counts: the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from gpulab.hardware.lookup import resolve
from gpulab.lessons.labs.host.operators import OperatorCall, observe_operators
from gpulab.virtual.memory_fit.step_estimate import StepEstimate
from gpulab.wording import percent, plural, size

MULTIPROCESSORS = resolve("h100").multiprocessors
TILE = 128  # rows and columns of the result that one thread block usually computes


@dataclass(frozen=True, kw_only=True)
class WorkCount:
    """The operators that some code called. On a GPU each of them is one kernel or a few."""

    ops: int
    flops: int  # matrix products and convolutions only; a multiply-add counts as two
    largest_flops: int  # of the operator with the most FLOPs
    by_name: Mapping[str, int]  # calls by operator name

    @property
    def matrix_ops(self) -> int:
        """Number of matrix products and convolutions."""
        return sum(count for name, count in self.by_name.items() if name in _PRODUCTS)


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


def count_work(code: Callable[[], object]) -> WorkCount:
    """Count the operators that `code` dispatches to the device. Views and allocations do not count as work."""
    from torch.utils.flop_counter import flop_registry

    calls: Counter[str] = Counter()
    flops: list[int] = []

    def count(call: OperatorCall) -> None:
        if call.is_work:
            calls[call.name] += 1
            formula = flop_registry.get(call.operator.overloadpacket)
            flops.append(int(formula(*call.args, **call.kwargs, out_val=call.result)) if formula else 0)

    with observe_operators(count):
        code()
    return WorkCount(ops=calls.total(), flops=sum(flops), largest_flops=max(flops, default=0), by_name=dict(calls))


def peak_saved_bytes(code: Callable[[], object]) -> int:
    """Return the peak bytes of activations that autograd saves for backward. Parameters do not count."""
    import torch

    references: Counter[int] = Counter()  # address -> saved tensors that use this memory
    saved_now_bytes = peak_bytes = 0

    class SavedTensor:
        """One tensor saved for backward; counts its memory until autograd releases it."""

        def __init__(self, tensor: Any) -> None:
            nonlocal saved_now_bytes, peak_bytes
            self.tensor = tensor
            owner = tensor if tensor._base is None else tensor._base  # a layer saves its weight as a view
            self.counts = not (owner.is_leaf and owner.requires_grad)
            if self.counts:
                self.address, self.bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
                saved_now_bytes += self.bytes * (not references[self.address])
                references[self.address] += 1
                peak_bytes = max(peak_bytes, saved_now_bytes)

        def __del__(self) -> None:
            nonlocal saved_now_bytes
            if self.counts:
                references[self.address] -= 1
                saved_now_bytes -= self.bytes * (not references[self.address])

    with torch.autograd.graph.saved_tensors_hooks(SavedTensor, lambda saved: saved.tensor):
        code()
    return peak_bytes


@dataclass(frozen=True, kw_only=True)
class MatmulTiling:
    """A matrix product split into tiles, one thread block each."""

    blocks: int
    waves: int  # rounds of blocks, one block per multiprocessor at a time
    filled_frac: float  # fraction of the capacity of those waves that computes results, 0-1

    def __str__(self) -> str:
        waves = f"{self.waves:>2} {plural(self.waves, 'wave') + ',':6}"
        return f"{self.blocks:>5,} blocks in {waves} {percent(self.filled_frac)} of their capacity is used"


def tile_matmul(rows: int, columns: int, tile: int = TILE, multiprocessors: int = MULTIPROCESSORS) -> MatmulTiling:
    """Split a result of this size into tiles. A partial tile or a partial wave costs as much as a full one."""
    blocks = ceil(rows / tile) * ceil(columns / tile)
    waves = ceil(blocks / multiprocessors)
    return MatmulTiling(blocks=blocks, waves=waves, filled_frac=rows * columns / (waves * multiprocessors * tile**2))


class BatchMemory:
    """Linear model of a training step's memory on a GPU: a fixed part, and a part per sample.

    `peak(batch)` simulates a training step: it returns the peak memory, or raises the error that PyTorch raises.
    `tries` counts the simulated steps, because each of them would be a start of the program.
    """

    def __init__(self, capacity_bytes: int, fixed_bytes: float, sample_bytes: float) -> None:
        self.capacity_bytes = capacity_bytes
        self._fixed_bytes, self._sample_bytes = fixed_bytes, sample_bytes
        self.tries = 0

    def peak(self, batch: int) -> int:
        """Return the peak memory with this batch, in bytes. Raises torch.OutOfMemoryError if it does not fit."""
        import torch

        self.tries += 1
        needed_bytes = self._needed_bytes(batch)
        if needed_bytes > self.capacity_bytes:
            raise torch.OutOfMemoryError(
                f"out of memory: a batch of {batch:,} needs {size(needed_bytes)}, "
                f"and {size(self.capacity_bytes)} are available; try a smaller batch"
            )
        return needed_bytes

    def is_largest(self, batch: int) -> bool:
        """Return whether this is the largest batch that fits. Does not count in `tries`."""
        return batch == int(batch) and self._needed_bytes(batch) <= self.capacity_bytes < self._needed_bytes(batch + 1)

    def describe(self, batch: int) -> str:
        """Describe whether this batch fits, and whether a larger one would."""
        if self._needed_bytes(batch) > self.capacity_bytes:
            return "does not fit"
        return "the largest that fits" if self.is_largest(batch) else "fits, and so does a larger one"

    def _needed_bytes(self, batch: int) -> int:
        return ceil(self._fixed_bytes + self._sample_bytes * batch)


def batch_memory(measured: Sequence[StepEstimate]) -> BatchMemory:
    """Fit the memory of a step by a line through the two smallest batches that were measured."""
    first, second = measured[:2]
    sample_bytes = (second.peak.bytes - first.peak.bytes) / (second.samples - first.samples)
    fixed_bytes = first.peak.bytes - sample_bytes * first.samples
    return BatchMemory(first.usable_bytes - first.non_torch_bytes, fixed_bytes, sample_bytes)
