"""What a running session can say of itself: plain values, taken several times a second by the sampler's thread."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.sensors import GpuReading


@dataclass(frozen=True, kw_only=True)
class WorkerNow:
    """One DataLoader worker at one moment; None where the system does not tell."""

    load_frac: float | None  # of one core, since it was last looked at
    blocked: bool | None  # waiting for storage (state D) in this moment


@dataclass(frozen=True, kw_only=True)
class Live:
    """The state of a session at one moment.

    The loop's time is all time since the first step without the silences in which no step came: between two cells,
    or after the loop has ended.
    """

    phase: str  # what the profiler does, in words: plan.Phase, or "sensors only", "paused ..." or "processing"
    elapsed_s: float
    steps: int
    steps_per_s: float | None  # over the last two seconds; None before two steps
    waiting_frac: float | None  # share of the loop's time in which it waited for the next batch; None without a loader
    gpus: tuple[GpuReading, ...]
    core_fracs: tuple[float, ...]  # load of each core, 0-1
    rss_bytes: float | None
    workers: int
    frame: str | None  # the user's line the main thread is at
    running: bool = False  # steps are being made
    waiting_lately_frac: float | None = None  # the same as waiting_frac, of the last ten seconds
    used_gpus: tuple[int, ...] = ()  # places in `gpus` of those that worked while the loop ran; all if none did
    gpu_busy_frac: float | None = None  # mean utilisation of these over the loop's time
    workers_now: tuple[WorkerNow, ...] = ()
