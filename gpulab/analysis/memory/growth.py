"""Memory growth over steps: rate, whether it continues, and when memory will run out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.trend import Trend, fit_trend
from gpulab.analysis.memory.allocator import capacity_bytes
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.interior import WARM_UP_STEPS
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run

Floats = NDArray[np.float64]

MIN_GROWTH_STEPS = 20  # a slope over fewer steps is not reliable
MIN_READINGS = 10
SETTLED_FRAC = 0.1  # share of the steps excluded at the start, while caches fill and workers start


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of one memory over the warm steps: of a GPU by PyTorch's allocator, or of the process by its RSS."""

    device: int | None  # GPU index; None: host memory
    per_step: Trend  # bytes per step
    second_half: Trend | None  # the same over the second half only: memory that levels off does not grow there
    peak: Trend | None  # of the peak of allocated memory; None if unknown
    step_time: Trend | None  # ns per step: growing inputs also make steps longer
    step_ns: int  # typical step time
    first_bytes: float  # at the first and the last reading used
    last_bytes: float
    steps: int  # number of steps between these readings
    free_bytes: float | None  # free memory at the end; None if unknown

    @property
    def steps_left(self) -> float | None:
        """Number of steps until memory is full, at this rate; None if unknown or not growing."""
        if self.free_bytes is None or self.per_step.slope <= 0:
            return None
        return self.free_bytes / self.per_step.slope


def memory_growths(run: Run, steps: Steps) -> tuple[Growth, ...]:
    """Compute the growth of each measured memory over the steps; empty if there are too few steps."""
    if len(steps) < MIN_GROWTH_STEPS or steps.detected_by == "whole run":
        return ()
    devices = np.unique(run.allocator_rows["device"]).tolist()
    results = [_of_gpu(run, steps, device) for device in devices]
    if not devices:
        results = [_of_host(run, steps)]
    return tuple(each for each in results if each is not None)


def _of_gpu(run: Run, steps: Steps, device: int) -> Growth | None:
    rows = run.allocator_rows.select(run.allocator_rows["device"] == device)
    rows = rows.select(rows["allocated_bytes"] >= 0)
    at = _step_of(steps, rows["at_ns"])
    # Read at the start of a step. Optimizer state is allocated in the first step, buffers in the second.
    warm = at >= max(WARM_UP_STEPS + 1, SETTLED_FRAC * len(steps))
    peaks = rows["peak_allocated_bytes"].astype(float)
    peaks[peaks < 0] = np.nan
    return _growth(
        steps, device, at[warm], rows["allocated_bytes"][warm], peaks[warm], _free_gpu_bytes(run, rows, device)
    )


def _of_host(run: Run, steps: Steps) -> Growth | None:
    """Compute the growth of RSS after gpulab stopped recording, because recordings take memory themselves."""
    rows = run.host_rows
    rows = rows.select(np.isfinite(rows["rss_bytes"]))
    gpulab_end_ns = [end for _, end in (*run.recording.windows_ns, *run.recording.pauses_ns)]
    at = _step_of(steps, rows["at_ns"])
    warm = (rows["at_ns"] > max(gpulab_end_ns, default=0)) & (at >= max(WARM_UP_STEPS + 1, SETTLED_FRAC * len(steps)))
    warm &= rows["at_ns"] <= steps.end_ns[-1]
    no_peaks = np.full(int(warm.sum()), np.nan)
    return _growth(steps, None, at[warm], rows["rss_bytes"][warm], no_peaks, _free_host_bytes(run, rows))


def _growth(
    steps: Steps, device: int | None, at: Floats, values: Floats, peaks: Floats, free_bytes: float | None
) -> Growth | None:
    if len(at) < MIN_READINGS or at[-1] - at[0] < MIN_GROWTH_STEPS:
        return None
    per_step = fit_trend(at, values)
    if per_step is None:
        return None
    middle = (at[0] + at[-1]) / 2
    unprofiled = np.flatnonzero(steps.unprofiled)
    dur_ns = steps.dur_ns[unprofiled]
    return Growth(
        device=device,
        per_step=per_step,
        second_half=fit_trend(at[at >= middle], values[at >= middle]),
        peak=fit_trend(at, peaks),
        step_time=fit_trend(unprofiled, dur_ns),
        step_ns=int(np.median(dur_ns)) if len(dur_ns) else int(np.median(steps.dur_ns)),
        first_bytes=float(values[0]),
        last_bytes=float(values[-1]),
        steps=round(float(at[-1] - at[0])),
        free_bytes=free_bytes,
    )


def _step_of(steps: Steps, at_ns: Ints) -> Floats:
    """Return the step of each reading as a number with a fraction; -1 before the first step."""
    numbers: Floats = np.interp(at_ns, steps.start_ns, np.arange(len(steps)), left=-1.0)
    return numbers


def _free_gpu_bytes(run: Run, rows: Rows, device: int) -> float | None:
    capacity = capacity_bytes(run, device)
    if capacity is None or not len(rows):
        return None
    used_readings = run.gpu_rows.select(run.gpu_rows["device"] == device)["memory_used_bytes"]
    used_readings = used_readings[np.isfinite(used_readings)]
    # All processes if the driver reports them. PyTorch's cached memory can still be allocated.
    cached = float(rows["reserved_bytes"][-1] - rows["allocated_bytes"][-1])
    used = float(used_readings[-1]) if len(used_readings) else float(rows["reserved_bytes"][-1])
    return max(0.0, capacity - used + cached)


def _free_host_bytes(run: Run, rows: Rows) -> float | None:
    if not len(rows):
        return None
    available, limit = rows["memory_available_bytes"][-1], run.machine.memory_limit_bytes
    limits = [float(available)] if np.isfinite(available) else []
    if limit is not None:
        limits.append(max(0.0, limit - float(rows["rss_bytes"][-1])))
    return min(limits, default=None)
