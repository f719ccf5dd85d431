"""Kernels that get slower from the first recorded steps to the last."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.run import Run
from gpulab.tables import EventKind

_MIN_STEPS = 12
_PARTS = 4
_MIN_RATIO = 1.15
_MIN_CALLS = 3  # per quarter of the steps


@dataclass(frozen=True, kw_only=True)
class KernelDrift:
    """A kernel (of one launch configuration) that gets slower in each quarter of the recorded steps."""

    name: str
    calls: int
    quarter_ns: tuple[float, ...]  # median duration in each quarter
    excess_frac: float  # share of the steps that it would save at its first duration

    @property
    def ratio(self) -> float:
        """How many times as long it takes in the last quarter as in the first."""
        return self.quarter_ns[-1] / self.quarter_ns[0]


def drifting_kernels(run: Run, steps: Steps, ledger: Ledger) -> tuple[KernelDrift, ...]:
    """Return the kernels that get slower, the most expensive first; () with fewer than twelve recorded steps."""
    inside = np.flatnonzero(steps.interior)
    if len(inside) < _MIN_STEPS:
        return ()
    rows = run.event_rows
    kernels = np.flatnonzero(rows["kind"] == EventKind.KERNEL.value)
    start_ns, dur_ns = rows["start_ns"][kernels], rows["dur_ns"][kernels]
    step = np.searchsorted(steps.start_ns[inside], start_ns, side="right") - 1
    valid = (step >= 0) & (start_ns < steps.end_ns[inside][np.maximum(step, 0)])
    quarter = step * _PARTS // len(inside)
    codes = rows.text("name").codes[kernels]
    grid = _grids(run)[kernels]
    key = codes.astype(np.int64) * 2**40 + grid
    total_ns = float(steps.dur_ns[inside].sum())
    drifts = []
    for value in np.unique(key[valid]).tolist():
        mask = valid & (key == value)
        medians, excess_ns = _medians(quarter[mask], dur_ns[mask])
        if medians and all(later > earlier for earlier, later in pairwise(medians)):
            drift = KernelDrift(
                name=rows.text("name").vocabulary[int(value >> 40)],
                calls=int(mask.sum()),
                quarter_ns=medians,
                excess_frac=excess_ns / total_ns,
            )
            if drift.ratio >= _MIN_RATIO:
                drifts.append(drift)
    return tuple(sorted(drifts, key=lambda drift: -drift.excess_frac))


def _medians(quarter: np.ndarray, dur_ns: np.ndarray) -> tuple[tuple[float, ...], float]:
    """Return the median of each quarter, and the time above that of the first; () if a quarter has too few calls."""
    parts = [dur_ns[quarter == number] for number in range(_PARTS)]
    if min(map(len, parts)) < _MIN_CALLS:
        return (), 0.0
    medians = tuple(float(np.median(part)) for part in parts)
    return medians, float(np.maximum(dur_ns - medians[0], 0).sum())


def _grids(run: Run) -> np.ndarray:
    """Return a number of the launch configuration for each event; the same for all if none was recorded."""
    number = np.zeros(len(run.event_rows), np.int64)
    grids = run.grid_rows
    if len(grids):
        number[grids["event"]] = (grids["grid"] * 4096 + grids["block"]) % 2**39
    return number
