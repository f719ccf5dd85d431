"""PCIe link between host and GPU: possible rate, and generation and width under load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.machine.clocks import gpu_samples_under_load
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.hardware.pcie import pinned_copy_bytes_per_s
from gpulab.run import Gpu, Run


def best_link_bytes_per_s(run: Run) -> float | None:
    """Return the rate of large pinned copies over the best link that GPU and slot support; None if unknown."""
    gpu = next(iter(run.machine.gpus), None)
    if gpu is None or gpu.link_generation_max is None or gpu.link_width_max is None:
        return None
    return pinned_copy_bytes_per_s(gpu.link_generation_max, gpu.link_width_max)


@dataclass(frozen=True, kw_only=True)
class PcieLink:
    """PCIe generation and width of the busiest GPU under load."""

    gpu: Gpu
    generation: int
    width: int

    @property
    def reduced(self) -> bool:
        """Whether the link had fewer or slower lanes than GPU and slot support."""
        lanes, generation = self.gpu.link_width_max, self.gpu.link_generation_max
        return (lanes is not None and self.width < lanes) or (generation is not None and self.generation < generation)


def pcie_link(run: Run, steps: Steps, ledger: Ledger) -> PcieLink | None:
    """Return the link under load; None if unknown. An idle GPU lowers the generation to save power."""
    device = main_device(run) if ledger.device == "gpu" else 0
    gpu = next((each for each in run.machine.gpus if each.index == device), None)
    rows = gpu_samples_under_load(run, steps, device)
    known_rows = rows.select(~np.isnan(rows["link_generation"]) & ~np.isnan(rows["link_width"]))
    if gpu is None or not len(known_rows):
        return None
    return PcieLink(
        gpu=gpu,
        generation=int(np.median(known_rows["link_generation"])),
        width=int(np.median(known_rows["link_width"])),
    )
