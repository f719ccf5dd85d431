"""What a run took beside time: memory and energy. What was not measured is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.cpu_contention import in_the_loop
from gpulab.analysis.machine.clocks import of_the_loop, sensed_device
from gpulab.analysis.steps.detection import Steps
from gpulab.rows import Rows
from gpulab.run import Run

LEAST_S = 0.5  # of readings: the counter of energy moves only several times a second


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Of the loop; None: not measured."""

    allocated_bytes: float | None = None  # the most PyTorch gave out on the GPU that worked most
    reserved_bytes: float | None = None  # the most it held there
    rss_bytes: float | None = None  # the most this process had resident
    power_w: float | None = None  # mean board power of that GPU
    step_j: float | None = None  # energy of a mean step at that power


def usage(run: Run, steps: Steps) -> Usage:
    """Memory and energy of the loop."""
    device = sensed_device(run)
    resident = in_the_loop(run, steps)["rss_bytes"]
    power_w = _power_w(of_the_loop(run, steps, device))
    judged = steps.plain if steps.plain.any() else steps.interior
    mean_s = float(steps.dur_ns[judged].mean()) / 1e9 if judged.any() else None
    return Usage(
        allocated_bytes=_peak(run, device, "peak_allocated_bytes", "allocated_bytes"),
        reserved_bytes=_peak(run, device, "peak_reserved_bytes", "reserved_bytes"),
        rss_bytes=None if np.isnan(resident).all() else float(np.nanmax(resident)),
        power_w=power_w,
        step_j=None if power_w is None or mean_s is None else power_w * mean_s,
    )


def _peak(run: Run, device: int, peak: str, current: str) -> int | None:
    """The most in this run; None where the process had reached that before, and it is not told what this run did."""
    rows = run.allocator_rows.where(run.allocator_rows["device"] == device)
    rows = rows.where(rows[peak] >= 0)
    if not len(rows):
        return None
    first, last = int(rows[peak][0]), int(rows[peak][-1])
    # PyTorch counts peaks from the start of the process: one that did not rise may be that of an earlier cell.
    return last if last > first or last <= int(rows[current].max()) else None


def _power_w(rows: Rows) -> float | None:
    """Mean power by the driver's counter of energy, else by its readings of power."""
    for column in ("energy_j", "power_w"):
        told = rows.where(~np.isnan(rows[column]))
        if len(told) < 3:
            continue
        at_s = (told["at_ns"] - told["at_ns"][0]) / 1e9
        span_s, values = float(at_s[-1]), told[column]
        if span_s < LEAST_S:
            continue
        if column == "power_w":
            return float(((values[1:] + values[:-1]) / 2 * np.diff(at_s)).sum()) / span_s
        grown_j = float(values[-1] - values[0])
        if grown_j > 0:
            return grown_j / span_s
    return None
