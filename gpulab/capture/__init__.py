"""Recording: torch.profiler, sensors and step marks around a cell or a block, to a Run."""

from __future__ import annotations

from gpulab.capture.active import step
from gpulab.capture.live import Live, WorkerNow
from gpulab.capture.monitoring import Monitoring
from gpulab.capture.profiler import warm_up
from gpulab.capture.session import Session, profile
from gpulab.capture.shelf import Runs, runs

__all__ = ["Live", "Monitoring", "Runs", "Session", "WorkerNow", "profile", "runs", "step", "warm_up"]
