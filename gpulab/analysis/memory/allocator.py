"""What asking for GPU memory costs, and how much of it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.steps.detection import WARM_UP, Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, covered_ns
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

# Not the caching allocator's requests: pinned host memory, the driver's own pool, and expandable segments that map.
_OTHERS = ("Host", "Async", "cuMem", "hipMem", "MemPool")


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Calls to the driver that give or take GPU memory, in the interior steps."""

    asked: int  # in the typical step
    freed: int
    blocked_ns: int  # the host inside them, in the typical step
    by_pytorch: bool | None  # whether PyTorch's allocator made them; None where it was not asked
    retries: int | None  # times its cache was emptied as the GPU was full, over the settled steps


@dataclass(frozen=True, kw_only=True)
class Room:
    """How full a GPU is, and what of it is stranded; the highest over the settled part of the run."""

    device: int
    capacity_bytes: int | None
    used_bytes: float  # by all processes where told, else what PyTorch held
    reserved_bytes: int  # held by PyTorch at its highest
    allocated_bytes: int  # given out at its highest
    split_frac: float | None  # free pieces of blocks in use, of what is held, in the typical step
    retries: int | None
    refused: int | None

    @property
    def used_frac(self) -> float | None:
        """Of the GPU's memory; None where its size is not known."""
        return None if not self.capacity_bytes else self.used_bytes / self.capacity_bytes

    @property
    def stranded_bytes(self) -> int:
        """Held at its highest, and not given out even when most was."""
        return max(0, self.reserved_bytes - self.allocated_bytes)


def requests(run: Run, steps: Steps, ledger: Ledger) -> Requests | None:
    """The driver's part in giving out memory; None where it had none in the interior steps."""
    calls = in_interior(run.event_rows.of_kind(Kind.ALLOC), steps)
    calls = calls.where(~calls.matching(lambda word: any(part in word for part in _OTHERS)))
    if not len(calls):
        return None
    frees = calls.matching(lambda word: "Free" in word)
    start, end = steps.interior_bounds_ns
    grown = _rise(settled(run, steps), "device_allocs")
    return Requests(
        asked=_per_step(calls.where(~frees)["start_ns"], start),
        freed=_per_step(calls.where(frees)["start_ns"], start),
        blocked_ns=int(np.median(covered_ns(calls.spans(), start, end))),
        by_pytorch=None if grown is None else grown > 0,
        retries=_rise(settled(run, steps), "retries"),
    )


def rooms(run: Run, steps: Steps) -> tuple[Room, ...]:
    """Every GPU whose allocator was read."""
    rows = settled(run, steps)
    return tuple(_room(run, rows.where(rows["device"] == device), device) for device in np.unique(rows["device"]))


def settled(run: Run, steps: Steps) -> Rows:
    """What the allocator said once the first steps, which fill its cache, were over."""
    rows = run.allocator_rows
    begins = steps.start_ns[min(WARM_UP, len(steps) - 1)] if len(steps) else 0
    late = rows.where(rows["at_ns"] >= begins)
    return late if len(late) else rows


def capacity_bytes(run: Run, device: int) -> int | None:
    """The memory of a GPU by its CUDA index; None where it is not known."""
    gpus = run.machine.gpus
    return gpus[device].memory_bytes if 0 <= device < len(gpus) else None


def _room(run: Run, rows: Rows, device: int) -> Room:
    sensed = run.gpu_rows.where(run.gpu_rows["device"] == device)["memory_used_bytes"]
    reserved = int(rows["peak_reserved_bytes"].max())
    split, held = rows["inactive_split_bytes"], rows["reserved_bytes"]
    told = (split >= 0) & (held > 0)
    return Room(
        device=int(device),
        capacity_bytes=capacity_bytes(run, device),
        used_bytes=max(float(np.nanmax(sensed)) if np.isfinite(sensed).any() else 0.0, float(reserved)),
        reserved_bytes=reserved,
        allocated_bytes=int(rows["peak_allocated_bytes"].max()),
        split_frac=float(np.median(split[told] / held[told])) if told.any() else None,
        retries=_rise(rows, "retries"),
        refused=_rise(rows, "out_of_memory"),
    )


def _per_step(at_ns: Ints, starts: Ints) -> int:
    counts = np.bincount(np.searchsorted(starts, at_ns, side="right") - 1, minlength=len(starts))
    return int(np.median(counts))


def _rise(rows: Rows, column: str) -> int | None:
    """How much a count rose, over all GPUs; None where it was not told twice."""
    rises = []
    for device in np.unique(rows["device"]):
        told = rows[column][(rows["device"] == device) & (rows[column] >= 0)]
        if len(told) >= 2:
            rises.append(int(told[-1] - told[0]))
    return sum(rises) if rises else None
