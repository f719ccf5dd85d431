"""State of a running session as plain values, taken several times a second by the sampler's thread."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.capture.hooks.loader_pass import LoaderPass
from gpulab.sensors import GpuReading


@dataclass(frozen=True, kw_only=True)
class WorkerState:
    """State of one DataLoader worker; None if unknown on this system."""

    load_frac: float | None  # of one core, since the previous look
    blocked: bool | None  # waiting for storage (state D) right now


@dataclass(frozen=True, kw_only=True)
class LiveSnapshot:
    """State of a session at one time.

    Loop time is all time since the first step, without the pauses in which no step came: between two cells, or after
    the loop has ended.
    """

    phase: str  # of the profiler: a value of plan.Phase, "sensors only", "paused ..." or "processing"
    elapsed_s: float
    steps: int
    steps_per_s: float | None  # over the last two seconds; None with fewer than two steps
    waiting_frac: float | None  # share of loop time spent waiting for the next batch; None without a loader
    gpus: tuple[GpuReading, ...]
    core_fracs: tuple[float, ...]  # load of each core, 0-1
    rss_bytes: float | None
    workers: int
    frame: str | None  # the user's line that the main thread is running
    running: bool = False  # the loop is making steps
    loop_s: float = 0.0  # loop time
    recent_waiting_frac: float | None = None  # waiting_frac over the last ten seconds
    used_gpus: tuple[int, ...] = ()  # indices in `gpus` of those that worked while the loop ran; all if none did
    gpu_busy_frac: float | None = None  # their mean utilisation over loop time
    worker_states: tuple[WorkerState, ...] = ()
    loader_pass: LoaderPass | None = None  # the pass over the data; None if its length is unknown
