"""The link between host and device: how fast it could be, and how it is set while it is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.machine.clocks import loaded
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.run import Gpu, Run


def practical_bytes_per_s(run: Run) -> float | None:
    """What the best link that GPU and slot can have together gives a large pinned copy; None where it is not known."""
    gpu = next(iter(run.machine.gpus), None)
    if gpu is None or gpu.link_generation_max is None or gpu.link_width_max is None:
        return None
    return pinned_copy_bytes_per_s(gpu.link_generation_max, gpu.link_width_max)


@dataclass(frozen=True, kw_only=True)
class Link:
    """How the link to the busiest GPU was set while that GPU was at work."""

    gpu: Gpu
    generation: int
    width: int

    @property
    def reduced(self) -> bool:
        """Whether it ran with fewer lanes, or slower ones, than GPU and slot can have together."""
        lanes, slower = self.gpu.link_width_max, self.gpu.link_generation_max
        return (lanes is not None and self.width < lanes) or (slower is not None and self.generation < slower)


def link(run: Run, steps: Steps, ledger: Ledger) -> Link | None:
    """How the link was set under load; None where that was not told. An idle GPU lowers it to save power."""
    device = main_device(run) if ledger.device == "gpu" else 0
    gpu = next((each for each in run.machine.gpus if each.index == device), None)
    rows = loaded(run, steps, device)
    told = rows.where(~np.isnan(rows["link_generation"]) & ~np.isnan(rows["link_width"]))
    if gpu is None or not len(told):
        return None
    return Link(gpu=gpu, generation=int(np.median(told["link_generation"])), width=int(np.median(told["link_width"])))
