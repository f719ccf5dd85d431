"""Recording: torch.profiler, sensors and step marks around a cell or a block, to a Run."""

from __future__ import annotations

from gpulab.capture.active_session import step
from gpulab.capture.live.monitoring import Monitoring
from gpulab.capture.live.snapshot import Live, WorkerNow
from gpulab.capture.profiler import warm_up
from gpulab.capture.run_registry import Runs, runs
from gpulab.capture.session import Session, profile

__all__ = ["Live", "Monitoring", "Runs", "Session", "WorkerNow", "profile", "runs", "step", "warm_up"]
