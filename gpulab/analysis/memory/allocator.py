"""CUDA caching allocator: cost of `cudaMalloc`/`cudaFree`, memory use and fragmentation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.interior import WARM_UP_STEPS
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, covered_ns
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

# Calls not made by the caching allocator: pinned host memory, the driver's memory pool, mapping of expandable segments.
_OTHERS = ("Host", "Async", "cuMem", "hipMem", "MemPool")


@dataclass(frozen=True, kw_only=True)
class DriverAllocations:
    """Driver calls that allocate or free GPU memory, in the interior steps."""

    mallocs: int  # cudaMalloc calls in the typical step
    frees: int  # cudaFree calls in the typical step
    blocked_ns: int  # time of the host inside them, in the typical step
    by_pytorch: bool | None  # whether PyTorch's allocator made them; None if its statistics were not read
    retries: int | None  # allocations retried after emptying the cache because the GPU was full, in warm steps


@dataclass(frozen=True, kw_only=True)
class AllocatorUse:
    """Memory use and fragmentation of a GPU: maxima over the warm part of the run."""

    device: int
    capacity_bytes: int | None
    used_bytes: float  # by all processes if known, else reserved by PyTorch
    reserved_bytes: int  # peak of memory reserved by PyTorch
    allocated_bytes: int  # peak of memory allocated to tensors
    fragmented_frac: float | None  # free parts of split blocks / reserved memory, in the typical step
    retries: int | None
    out_of_memory_errors: int | None

    @property
    def used_frac(self) -> float | None:
        """Used share of the GPU's memory; None if its size is unknown."""
        return None if not self.capacity_bytes else self.used_bytes / self.capacity_bytes

    @property
    def never_allocated_bytes(self) -> int:
        """Memory reserved at its peak and not allocated even at the allocation peak."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


def driver_allocations(run: Run, steps: Steps, ledger: Ledger) -> DriverAllocations | None:
    """Compute the driver allocations of the interior steps; None if there were none."""
    calls = rows_in_interior(run.event_rows.of_kind(EventKind.ALLOC), steps)
    calls = calls.select(~calls.matching(lambda word: any(part in word for part in _OTHERS)))
    if not len(calls):
        return None
    frees = calls.matching(lambda word: "Free" in word)
    start, end = steps.interior_bounds_ns
    new_allocations = _increase(warm_allocator_rows(run, steps), "device_allocs")
    return DriverAllocations(
        mallocs=_per_step(calls.select(~frees)["start_ns"], start),
        frees=_per_step(calls.select(frees)["start_ns"], start),
        blocked_ns=int(np.median(covered_ns(calls.spans(), start, end))),
        by_pytorch=None if new_allocations is None else new_allocations > 0,
        retries=_increase(warm_allocator_rows(run, steps), "retries"),
    )


def gpu_memory(run: Run, steps: Steps) -> tuple[AllocatorUse, ...]:
    """Return the memory use of every GPU whose allocator statistics were read."""
    rows = warm_allocator_rows(run, steps)
    return tuple(
        _gpu_memory(run, rows.select(rows["device"] == device), device) for device in np.unique(rows["device"])
    )


def warm_allocator_rows(run: Run, steps: Steps) -> Rows:
    """Return the allocator statistics after the first steps, which fill the cache."""
    rows = run.allocator_rows
    warm_ns = steps.start_ns[min(WARM_UP_STEPS, len(steps) - 1)] if len(steps) else 0
    warm_rows = rows.select(rows["at_ns"] >= warm_ns)
    return warm_rows if len(warm_rows) else rows


def capacity_bytes(run: Run, device: int) -> int | None:
    """Return the memory size of a GPU by its CUDA index; None if unknown."""
    gpus = run.machine.gpus
    return gpus[device].memory_bytes if 0 <= device < len(gpus) else None


def _gpu_memory(run: Run, rows: Rows, device: int) -> AllocatorUse:
    used_bytes = run.gpu_rows.select(run.gpu_rows["device"] == device)["memory_used_bytes"]
    peak_bytes = int(rows["peak_reserved_bytes"].max())
    split_bytes, reserved_bytes = rows["inactive_split_bytes"], rows["reserved_bytes"]
    is_known = (split_bytes >= 0) & (reserved_bytes > 0)
    return AllocatorUse(
        device=int(device),
        capacity_bytes=capacity_bytes(run, device),
        used_bytes=max(float(np.nanmax(used_bytes)) if np.isfinite(used_bytes).any() else 0.0, float(peak_bytes)),
        reserved_bytes=peak_bytes,
        allocated_bytes=int(rows["peak_allocated_bytes"].max()),
        fragmented_frac=float(np.median(split_bytes[is_known] / reserved_bytes[is_known])) if is_known.any() else None,
        retries=_increase(rows, "retries"),
        out_of_memory_errors=_increase(rows, "out_of_memory"),
    )


def _per_step(at_ns: Ints, starts: Ints) -> int:
    counts = np.bincount(np.searchsorted(starts, at_ns, side="right") - 1, minlength=len(starts))
    return int(np.median(counts))


def _increase(rows: Rows, column: str) -> int | None:
    """Return the increase of a counter, summed over GPUs; None if it has fewer than two readings."""
    increases = []
    for device in np.unique(rows["device"]):
        values = rows[column][(rows["device"] == device) & (rows[column] >= 0)]
        if len(values) >= 2:
            increases.append(int(values[-1] - values[0]))
    return sum(increases) if increases else None
