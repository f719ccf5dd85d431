"""Steady memory growth before an out-of-memory error, from allocated memory at the start of each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.interior import WARM_UP_STEPS
from gpulab.run import Run

MIN_READINGS_BEFORE_OOM = 4  # readings after the first steps, which allocate gradients and optimizer state
MAX_RATE_RATIO = 2.5  # maximum ratio of the growth rates of both halves of the readings
MAX_PEAK_RATIO = 1.5  # if the peak grows by more than this times the allocated memory, the batches grow


@dataclass(frozen=True, kw_only=True)
class SteadyGrowth:
    """Memory that grew by about the same amount in every step."""

    first_bytes: int
    last_bytes: int
    increases: int  # number of increases: one per step, or fewer if steps are short

    @property
    def grown_bytes(self) -> int:
        """Total growth."""
        return self.last_bytes - self.first_bytes


def steady_growth(run: Run, device: int) -> SteadyGrowth | None:
    """Find memory that every step grows by about the same amount; None if there is none, or with too few readings."""
    rows = run.allocator_rows
    rows = rows.select((rows["device"] == device) & (rows["allocated_bytes"] >= 0))
    allocated, peak = (
        rows[name].astype(np.float64)[WARM_UP_STEPS:] for name in ("allocated_bytes", "peak_allocated_bytes")
    )
    if len(allocated) < MIN_READINGS_BEFORE_OOM or (np.diff(allocated) <= 0).any():
        return None
    middle = len(allocated) // 2
    first_rate, second_rate = (
        (allocated[middle] - allocated[0]) / middle,
        (allocated[-1] - allocated[middle]) / (len(allocated) - 1 - middle),
    )
    if max(first_rate, second_rate) > MAX_RATE_RATIO * min(first_rate, second_rate):
        return None
    if (peak > 0).all() and peak[-1] - peak[0] > MAX_PEAK_RATIO * (allocated[-1] - allocated[0]):
        return None
    return SteadyGrowth(first_bytes=int(allocated[0]), last_bytes=int(allocated[-1]), increases=len(allocated) - 1)
