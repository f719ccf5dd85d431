"""How well kernels fill the GPU: fewer blocks than multiprocessors, and partly empty last waves (tail effect)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.kernels.interior_kernels import InteriorKernels
from gpulab.analysis.kernels.repeats import in_runs_of_equals, row_keys
from gpulab.hardware.architectures import threads_per_multiprocessor
from gpulab.intervals import Spans


@dataclass(frozen=True, kw_only=True)
class GpuFill:
    """How well the kernels of the interior steps fill the GPU, weighted by time."""

    multiprocessors: int
    known_frac: float  # share of kernel time with known number of blocks
    small_frac: float  # share of that time in small kernels, with fewer blocks than multiprocessors
    small_ns: int  # cost of small kernels in a typical step
    blocks: int  # median number of blocks of small kernels
    filled_frac: float  # mean share of multiprocessors that small kernels use, by time
    repeated_calls: int  # small kernels per typical step in runs of the same kernel with the same number of blocks
    repeated_frac: float  # share of the time of small kernels in such runs
    tail_frac: float | None  # share of the capacity that the last wave of other kernels leaves empty; None: unknown
    spans: Spans


def gpu_fill(kernels: InteriorKernels) -> GpuFill | None:
    """Compute how kernels fill the GPU; None if the number of blocks or of multiprocessors is unknown."""
    total = kernels.gpu.multiprocessors if kernels.gpu else None
    grids = kernels.run.grid_rows
    if not total or not len(grids):
        return None
    count = len(kernels.run.event_rows)
    blocks = grids.per_event("grid", count)[kernels.event_rows]
    is_known = blocks > 0
    time = kernels["dur_ns"].astype(np.float64)
    if not time[is_known].sum():
        return None
    small = is_known & (blocks < total)
    filled = np.minimum(blocks / total, 1.0)
    spans = kernels.exposed(small)
    in_runs = small & in_runs_of_equals(row_keys(kernels.code.astype(np.int64), blocks, kernels["stream"], part=small))
    return GpuFill(
        multiprocessors=total,
        known_frac=float(time[is_known].sum() / max(1.0, time.sum())),
        small_frac=float(time[small].sum() / time[is_known].sum()),
        small_ns=kernels.typical_ns(spans),
        blocks=int(np.median(blocks[small])) if small.any() else 0,
        filled_frac=float((filled * time)[small].sum() / max(1.0, time[small].sum())),
        repeated_calls=round(kernels.per_step(in_runs)),
        repeated_frac=float(time[in_runs].sum() / max(1.0, time[small].sum())),
        tail_frac=_tail_frac(kernels, is_known & ~small, blocks, total),
        spans=spans,
    )


def _tail_frac(kernels: InteriorKernels, mask: np.ndarray, blocks: np.ndarray, total: int) -> float | None:
    """Return the empty part of the last wave as a share of all waves, weighted by kernel time.

    Blocks per multiprocessor at once: Kineto's occupancy x threads per multiprocessor / block size.
    """
    grids, count = kernels.run.grid_rows, len(kernels.run.event_rows)
    occupancy = grids.per_event("occupancy_frac", count)[kernels.event_rows]
    threads = grids.per_event("block", count)[kernels.event_rows]
    mask = mask & (occupancy > 0) & (threads > 0)
    time = kernels["dur_ns"][mask].astype(np.float64)
    if not time.sum():
        return None
    max_threads = threads_per_multiprocessor(kernels.gpu.compute_capability if kernels.gpu else None)
    blocks_per_wave = np.maximum(1, np.round(occupancy[mask] * max_threads / threads[mask])) * total
    waves = np.ceil(blocks[mask] / blocks_per_wave)
    return float(((1 - blocks[mask] / (waves * blocks_per_wave)) * time).sum() / time.sum())
