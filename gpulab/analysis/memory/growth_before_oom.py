"""Steady memory growth before an out-of-memory error, from allocated memory at the start of each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import WARM_UP
from gpulab.run import Run

LEAST = 4  # readings after the first steps, which allocate gradients and optimizer state
STEADY = 2.5  # maximum ratio of the growth rates of both halves of the readings
PEAK_FOLLOWS = 1.5  # if the peak grows by more than this times the allocated memory, the batches grow


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Memory that grew by about the same amount in every step."""

    first_bytes: int
    last_bytes: int
    times: int  # number of increases: one per step, or fewer if steps are short

    @property
    def grown_bytes(self) -> int:
        """Total growth."""
        return self.last_bytes - self.first_bytes


def kept_by_steps(run: Run, device: int) -> Kept | None:
    """Find memory that every step grows by about the same amount; None if there is none, or with too few readings."""
    rows = run.allocator_rows
    rows = rows.where((rows["device"] == device) & (rows["allocated_bytes"] >= 0))
    allocated, peak = (rows[name].astype(np.float64)[WARM_UP:] for name in ("allocated_bytes", "peak_allocated_bytes"))
    if len(allocated) < LEAST or (np.diff(allocated) <= 0).any():
        return None
    middle = len(allocated) // 2
    first_rate, second_rate = (
        (allocated[middle] - allocated[0]) / middle,
        (allocated[-1] - allocated[middle]) / (len(allocated) - 1 - middle),
    )
    if max(first_rate, second_rate) > STEADY * min(first_rate, second_rate):
        return None
    if (peak > 0).all() and peak[-1] - peak[0] > PEAK_FOLLOWS * (allocated[-1] - allocated[0]):
        return None
    return Kept(first_bytes=int(allocated[0]), last_bytes=int(allocated[-1]), times=len(allocated) - 1)
