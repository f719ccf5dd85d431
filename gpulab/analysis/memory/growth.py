"""Memory that grows from step to step: how fast, whether it goes on, and how long it can."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.trend import Trend, trend
from gpulab.analysis.memory.allocator import capacity_bytes
from gpulab.analysis.steps.detection import WARM_UP, Steps
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run

Floats = NDArray[np.float64]

LEAST_STEPS = 20  # a slope over fewer steps is a mood
LEAST_READINGS = 10
SETTLED_FRAC = 0.1  # of the steps, beyond the first few: caches fill and workers start


@dataclass(frozen=True, kw_only=True)
class Growth:
    """One memory over the settled steps: the GPU's by PyTorch's allocator, or the process's by its resident size."""

    device: int | None  # GPU index; None: host memory
    per_step: Trend  # bytes per step
    late: Trend | None  # the same over the second half alone: what levels off has none there
    peak: Trend | None  # of the highest that was given out; None where not told
    step_time: Trend | None  # ns per step: inputs that grow make steps longer too
    step_ns: int  # the typical step
    first_bytes: float  # at the first reading that counts, and at the last
    last_bytes: float
    steps: int  # that these readings span
    room_bytes: float | None  # what is left at the end; None where not told

    @property
    def steps_left(self) -> float | None:
        """How many more steps fit, at this pace."""
        if self.room_bytes is None or self.per_step.slope <= 0:
            return None
        return self.room_bytes / self.per_step.slope


def growths(run: Run, steps: Steps) -> tuple[Growth, ...]:
    """How each memory that was read developed over the steps; empty where there were too few of them."""
    if len(steps) < LEAST_STEPS or steps.found_by == "whole run":
        return ()
    devices = np.unique(run.allocator_rows["device"]).tolist()
    found = [_of_gpu(run, steps, device) for device in devices]
    if not devices:
        found = [_of_host(run, steps)]
    return tuple(each for each in found if each is not None)


def _of_gpu(run: Run, steps: Steps, device: int) -> Growth | None:
    rows = run.allocator_rows.where(run.allocator_rows["device"] == device)
    rows = rows.where(rows["allocated_bytes"] >= 0)
    at = _step_of(steps, rows["at_ns"])
    # PyTorch was asked where a step begins. Optimizer state is made in the first step, and buffers in the second.
    late = at >= max(WARM_UP + 1, SETTLED_FRAC * len(steps))
    peaks = rows["peak_allocated_bytes"].astype(float)
    peaks[peaks < 0] = np.nan
    return _growth(steps, device, at[late], rows["allocated_bytes"][late], peaks[late], _gpu_room(run, rows, device))


def _of_host(run: Run, steps: Steps) -> Growth | None:
    """Resident memory after the last thing that gpulab itself did: while it records, what it records takes memory."""
    rows = run.host_rows
    rows = rows.where(np.isfinite(rows["rss_bytes"]))
    ours = [end for _, end in (*run.recording.windows_ns, *run.recording.pauses_ns)]
    at = _step_of(steps, rows["at_ns"])
    late = (rows["at_ns"] > max(ours, default=0)) & (at >= max(WARM_UP + 1, SETTLED_FRAC * len(steps)))
    late &= rows["at_ns"] <= steps.end_ns[-1]
    none = np.full(int(late.sum()), np.nan)
    return _growth(steps, None, at[late], rows["rss_bytes"][late], none, _host_room(run, rows))


def _growth(
    steps: Steps, device: int | None, at: Floats, values: Floats, peaks: Floats, room: float | None
) -> Growth | None:
    if len(at) < LEAST_READINGS or at[-1] - at[0] < LEAST_STEPS:
        return None
    per_step = trend(at, values)
    if per_step is None:
        return None
    middle = (at[0] + at[-1]) / 2
    plain = np.flatnonzero(steps.plain)
    dur_ns = steps.dur_ns[plain]
    return Growth(
        device=device,
        per_step=per_step,
        late=trend(at[at >= middle], values[at >= middle]),
        peak=trend(at, peaks),
        step_time=trend(plain, dur_ns),
        step_ns=int(np.median(dur_ns)) if len(dur_ns) else int(np.median(steps.dur_ns)),
        first_bytes=float(values[0]),
        last_bytes=float(values[-1]),
        steps=round(float(at[-1] - at[0])),
        room_bytes=room,
    )


def _step_of(steps: Steps, at_ns: Ints) -> Floats:
    """At which step a reading was taken, as a number with a fraction; before the first: -1."""
    numbers: Floats = np.interp(at_ns, steps.start_ns, np.arange(len(steps)), left=-1.0)
    return numbers


def _gpu_room(run: Run, rows: Rows, device: int) -> float | None:
    capacity = capacity_bytes(run, device)
    if capacity is None or not len(rows):
        return None
    sensed = run.gpu_rows.where(run.gpu_rows["device"] == device)["memory_used_bytes"]
    sensed = sensed[np.isfinite(sensed)]
    # All processes where the driver says; what PyTorch keeps for later can still be given out.
    kept = float(rows["reserved_bytes"][-1] - rows["allocated_bytes"][-1])
    used = float(sensed[-1]) if len(sensed) else float(rows["reserved_bytes"][-1])
    return max(0.0, capacity - used + kept)


def _host_room(run: Run, rows: Rows) -> float | None:
    if not len(rows):
        return None
    available, limit = rows["memory_available_bytes"][-1], run.machine.memory_limit_bytes
    rooms = [float(available)] if np.isfinite(available) else []
    if limit is not None:
        rooms.append(max(0.0, limit - float(rows["rss_bytes"][-1])))
    return min(rooms, default=None)
