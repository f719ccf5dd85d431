"""Recording: torch.profiler, sensors and step marks around a cell or a block, to a Run."""

from __future__ import annotations

from gpulab.capture.active import step
from gpulab.capture.live import Live
from gpulab.capture.profiler import warm_up
from gpulab.capture.session import Session, profile
from gpulab.capture.shelf import Runs, runs

__all__ = ["Live", "Runs", "Session", "profile", "runs", "step", "warm_up"]
