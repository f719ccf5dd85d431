"""What a running session can say of itself: plain values, taken several times a second by the sampler's thread."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.sensors import GpuReading


@dataclass(frozen=True, kw_only=True)
class Live:
    """The state of a session at one moment."""

    phase: str  # what the profiler does, in words: plan.Phase, or "sensors only", or "processing"
    elapsed_s: float
    steps: int
    steps_per_s: float | None  # over the last two seconds; None before two steps
    waiting_frac: float | None  # share of loop time the main thread waited for the next batch; None without a loader
    gpus: tuple[GpuReading, ...]
    core_fracs: tuple[float, ...]  # load of each core, 0-1
    rss_bytes: float | None
    workers: int
    frame: str | None  # the user's line the main thread is at
