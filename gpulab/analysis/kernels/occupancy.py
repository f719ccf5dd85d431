"""How kernels fill a GPU: fewer thread blocks than multiprocessors, and the last, half-empty wave of blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.kernels.interior import Interior
from gpulab.analysis.kernels.repeats import in_a_row, keyed
from gpulab.hardware.architectures import threads_per_multiprocessor
from gpulab.intervals import Spans


@dataclass(frozen=True, kw_only=True)
class Filling:
    """How the kernels of the interior steps fill the GPU, by their time."""

    multiprocessors: int
    told_frac: float  # share of kernel time for which the trace tells the number of blocks
    small_frac: float  # share of that in kernels with fewer blocks than multiprocessors
    small_ns: int  # what these cost a typical step
    blocks: int  # their median number of blocks
    filled_frac: float  # share of the multiprocessors that they keep busy, by their time
    alike: int  # of these, calls in a typical step that follow one another with the same kernel and as many blocks
    alike_frac: float  # share of their time in such calls
    tail_frac: float | None  # share of the other kernels' room that their last wave leaves empty; None: not told
    spans: Spans


def filling(kernels: Interior) -> Filling | None:
    """How the GPU is filled; None where the number of blocks or of multiprocessors is not told."""
    total = kernels.gpu.multiprocessors if kernels.gpu else None
    grids = kernels.run.grid_rows
    if not total or not len(grids):
        return None
    count = len(kernels.run.event_rows)
    blocks = grids.spread("grid", count)[kernels.event]
    told = blocks > 0
    time = kernels["dur_ns"].astype(np.float64)
    if not time[told].sum():
        return None
    small = told & (blocks < total)
    filled = np.minimum(blocks / total, 1.0)
    spans = kernels.exposed(small)
    alike = small & in_a_row(keyed(kernels.code.astype(np.int64), blocks, kernels["stream"], part=small))
    return Filling(
        multiprocessors=total,
        told_frac=float(time[told].sum() / max(1.0, time.sum())),
        small_frac=float(time[small].sum() / time[told].sum()),
        small_ns=kernels.typical_ns(spans),
        blocks=int(np.median(blocks[small])) if small.any() else 0,
        filled_frac=float((filled * time)[small].sum() / max(1.0, time[small].sum())),
        alike=round(kernels.per_step(alike)),
        alike_frac=float(time[alike].sum() / max(1.0, time[small].sum())),
        tail_frac=_tail(kernels, told & ~small, blocks, total),
        spans=spans,
    )


def _tail(kernels: Interior, mask: np.ndarray, blocks: np.ndarray, total: int) -> float | None:
    """Blocks run in waves; what the last wave leaves empty, as a share of all waves, weighted by kernel time.

    Kineto's occupancy says how many blocks a multiprocessor holds at once: occupancy x threads / block size.
    """
    grids, count = kernels.run.grid_rows, len(kernels.run.event_rows)
    occupancy = grids.spread("occupancy_frac", count)[kernels.event]
    threads = grids.spread("block", count)[kernels.event]
    mask = mask & (occupancy > 0) & (threads > 0)
    time = kernels["dur_ns"][mask].astype(np.float64)
    if not time.sum():
        return None
    resident = threads_per_multiprocessor(kernels.gpu.compute_capability if kernels.gpu else None)
    at_once = np.maximum(1, np.round(occupancy[mask] * resident / threads[mask])) * total
    waves = np.ceil(blocks[mask] / at_once)
    return float(((1 - blocks[mask] / (waves * at_once)) * time).sum() / time.sum())
