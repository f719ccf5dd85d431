"""How well kernels fill the GPU: fewer blocks than multiprocessors, and partly empty last waves (tail effect)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.kernels.interior import Interior
from gpulab.analysis.kernels.repeats import in_a_row, keyed
from gpulab.hardware.architectures import threads_per_multiprocessor
from gpulab.intervals import Spans


@dataclass(frozen=True, kw_only=True)
class Filling:
    """How well the kernels of the interior steps fill the GPU, weighted by time."""

    multiprocessors: int
    told_frac: float  # share of kernel time with known number of blocks
    small_frac: float  # share of that time in small kernels, with fewer blocks than multiprocessors
    small_ns: int  # cost of small kernels in a typical step
    blocks: int  # median number of blocks of small kernels
    filled_frac: float  # mean share of multiprocessors that small kernels use, by time
    alike: int  # small kernels per typical step in runs of the same kernel with the same number of blocks
    alike_frac: float  # share of the time of small kernels in such runs
    tail_frac: float | None  # share of the capacity that the last wave of other kernels leaves empty; None: unknown
    spans: Spans


def filling(kernels: Interior) -> Filling | None:
    """Compute how kernels fill the GPU; None if the number of blocks or of multiprocessors is unknown."""
    total = kernels.gpu.multiprocessors if kernels.gpu else None
    grids = kernels.run.grid_rows
    if not total or not len(grids):
        return None
    count = len(kernels.run.event_rows)
    blocks = grids.spread("grid", count)[kernels.event]
    is_known = blocks > 0
    time = kernels["dur_ns"].astype(np.float64)
    if not time[is_known].sum():
        return None
    small = is_known & (blocks < total)
    filled = np.minimum(blocks / total, 1.0)
    spans = kernels.exposed(small)
    in_runs = small & in_a_row(keyed(kernels.code.astype(np.int64), blocks, kernels["stream"], part=small))
    return Filling(
        multiprocessors=total,
        told_frac=float(time[is_known].sum() / max(1.0, time.sum())),
        small_frac=float(time[small].sum() / time[is_known].sum()),
        small_ns=kernels.typical_ns(spans),
        blocks=int(np.median(blocks[small])) if small.any() else 0,
        filled_frac=float((filled * time)[small].sum() / max(1.0, time[small].sum())),
        alike=round(kernels.per_step(in_runs)),
        alike_frac=float(time[in_runs].sum() / max(1.0, time[small].sum())),
        tail_frac=_tail_frac(kernels, is_known & ~small, blocks, total),
        spans=spans,
    )


def _tail_frac(kernels: Interior, mask: np.ndarray, blocks: np.ndarray, total: int) -> float | None:
    """Return the empty part of the last wave as a share of all waves, weighted by kernel time.

    Blocks per multiprocessor at once: Kineto's occupancy x threads per multiprocessor / block size.
    """
    grids, count = kernels.run.grid_rows, len(kernels.run.event_rows)
    occupancy = grids.spread("occupancy_frac", count)[kernels.event]
    threads = grids.spread("block", count)[kernels.event]
    mask = mask & (occupancy > 0) & (threads > 0)
    time = kernels["dur_ns"][mask].astype(np.float64)
    if not time.sum():
        return None
    max_threads = threads_per_multiprocessor(kernels.gpu.compute_capability if kernels.gpu else None)
    blocks_per_wave = np.maximum(1, np.round(occupancy[mask] * max_threads / threads[mask])) * total
    waves = np.ceil(blocks[mask] / blocks_per_wave)
    return float(((1 - blocks[mask] / (waves * blocks_per_wave)) * time).sum() / time.sum())
