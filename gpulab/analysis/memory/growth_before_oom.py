"""What a run that memory ended had kept from step to step, by what was given out where its steps began."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import WARM_UP
from gpulab.run import Run

LEAST = 4  # readings after the first steps, which make gradients and the optimizer's state
STEADY = 2.5  # one half of the readings grows at most so many times as fast as the other
PEAK_FOLLOWS = 1.5  # where the peak grows by more than this times what stays, the batches grow


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Memory that grew by as much again and again."""

    first_bytes: int
    last_bytes: int
    times: int  # readings between which it grew: one a step, or fewer where steps are short

    @property
    def grown_bytes(self) -> int:
        """All that was kept meanwhile."""
        return self.last_bytes - self.first_bytes


def kept_by_steps(run: Run, device: int) -> Kept | None:
    """What steps have added to memory, one as much as the other; None where they have not, or too few were seen."""
    rows = run.allocator_rows
    rows = rows.where((rows["device"] == device) & (rows["allocated_bytes"] >= 0))
    held, peak = (rows[name].astype(np.float64)[WARM_UP:] for name in ("allocated_bytes", "peak_allocated_bytes"))
    if len(held) < LEAST or (np.diff(held) <= 0).any():
        return None
    middle = len(held) // 2
    early, late = (held[middle] - held[0]) / middle, (held[-1] - held[middle]) / (len(held) - 1 - middle)
    if max(early, late) > STEADY * min(early, late):
        return None
    if (peak > 0).all() and peak[-1] - peak[0] > PEAK_FOLLOWS * (held[-1] - held[0]):
        return None
    return Kept(first_bytes=int(held[0]), last_bytes=int(held[-1]), times=len(held) - 1)
