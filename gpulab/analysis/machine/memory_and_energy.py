"""Memory and energy used by the loop. None: not measured, never zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.cpu_contention import host_samples_in_loop
from gpulab.analysis.machine.clocks import gpu_samples_in_loop, sensed_device
from gpulab.analysis.steps.detection import Steps
from gpulab.rows import Rows
from gpulab.run import Run

LEAST_S = 0.5  # minimum time of readings: the energy counter is updated only several times a second


@dataclass(frozen=True, kw_only=True)
class ResourceUse:
    """Memory and energy of the loop. None: not measured."""

    allocated_bytes: float | None = None  # peak of memory allocated by PyTorch on the busiest GPU
    reserved_bytes: float | None = None  # peak of memory reserved there
    rss_bytes: float | None = None  # peak RSS of this process
    power_w: float | None = None  # mean board power of that GPU
    step_j: float | None = None  # energy of a mean step at that power


def resource_use(run: Run, steps: Steps) -> ResourceUse:
    """Compute memory and energy of the loop."""
    device = sensed_device(run)
    rss_bytes = host_samples_in_loop(run, steps)["rss_bytes"]
    power_w = _power_w(gpu_samples_in_loop(run, steps, device))
    measured_steps = steps.unprofiled if steps.unprofiled.any() else steps.interior
    mean_s = float(steps.dur_ns[measured_steps].mean()) / 1e9 if measured_steps.any() else None
    return ResourceUse(
        allocated_bytes=_peak(run, device, "peak_allocated_bytes", "allocated_bytes"),
        reserved_bytes=_peak(run, device, "peak_reserved_bytes", "reserved_bytes"),
        rss_bytes=None if np.isnan(rss_bytes).all() else float(np.nanmax(rss_bytes)),
        power_w=power_w,
        step_j=None if power_w is None or mean_s is None else power_w * mean_s,
    )


def _peak(run: Run, device: int, peak: str, current: str) -> int | None:
    """Return the peak in this run; None if an earlier peak of the process hides it."""
    rows = run.allocator_rows.select(run.allocator_rows["device"] == device)
    rows = rows.select(rows[peak] >= 0)
    if not len(rows):
        return None
    first, last = int(rows[peak][0]), int(rows[peak][-1])
    # PyTorch records peaks since the start of the process: a peak that did not rise may be from an earlier cell.
    return last if last > first or last <= int(rows[current].max()) else None


def _power_w(rows: Rows) -> float | None:
    """Return the mean power from the energy counter, else from power readings."""
    for column in ("energy_j", "power_w"):
        known_rows = rows.select(~np.isnan(rows[column]))
        if len(known_rows) < 3:
            continue
        at_s = (known_rows["at_ns"] - known_rows["at_ns"][0]) / 1e9
        span_s, values = float(at_s[-1]), known_rows[column]
        if span_s < LEAST_S:
            continue
        if column == "power_w":
            return float(((values[1:] + values[:-1]) / 2 * np.diff(at_s)).sum()) / span_s
        energy_j = float(values[-1] - values[0])
        if energy_j > 0:
            return energy_j / span_s
    return None
