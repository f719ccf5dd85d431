"""What a run asked of its GPU: busy time, arithmetic, memory traffic, and how much of the GPU its kernels filled.

Four shares of the same steps, which a single "utilisation" would mix up. Where a run does not tell one it is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulab.analysis.kernels.interior import interior
from gpulab.analysis.kernels.occupancy import filling
from gpulab.analysis.kernels.roofline import works
from gpulab.analysis.peaks import Peaks, peaks_of
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.errors import RunError
from gpulab.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from torch import Tensor

SOFTMAX_FLOPS = 5  # for each number: compare, subtract, exponential, add, divide


@dataclass(frozen=True, kw_only=True)
class Load:
    """Of a run's whole recorded steps. Shares are 0-1."""

    name: str
    steps: int
    step_ns: float  # a mean step
    busy_frac: float  # of the time, with at least one kernel or copy on the GPU; the driver counts kernels alone
    flops: float | None  # of a mean step, in matrix products and convolutions; other arithmetic is not counted
    bytes: float | None  # of memory that a mean step must move at the least
    filled_frac: float | None  # of the multiprocessors, that the kernels have blocks for, by their time
    peaks: Peaks | None  # of this GPU

    @property
    def mfu_frac(self) -> float | None:
        """Arithmetic done, of what the tensor cores could do in 16 bits in the same time (model FLOPs utilisation)."""
        if self.flops is None or self.peaks is None:
            return None
        return self.flops / (self.step_ns / 1e9) / self.peaks.half

    @property
    def traffic_frac(self) -> float | None:
        """Memory traffic, of what the memory could carry in the same time."""
        if self.bytes is None or self.peaks is None:
            return None
        return self.bytes / (self.step_ns / 1e9) / self.peaks.memory


def load(run: Run) -> Load:
    """The load that a run put on its GPU. Raises RunError where no GPU work was recorded in whole steps."""
    found = steps(run)
    accounts = ledger(run, found)
    kernels = interior(run, found, accounts) if accounts is not None else None
    if accounts is None or kernels is None:
        raise RunError(
            "This run does not tell what it asked of a GPU.",
            why="it holds no kernels in whole recorded steps",
            fix="record it with L.gpu, or with %%gpuprofile --virtual auto",
        )
    seen = works(kernels)
    flops = [each.flops * each.count for each in seen if each.flops is not None]
    moved = [each.bytes * each.count for each in seen if each.bytes is not None]
    filled = filling(kernels)
    return Load(
        name=run.name,
        steps=kernels.many,
        step_ns=float(accounts.step_ns.mean()),
        busy_frac=accounts.busy_frac,
        flops=sum(flops) / kernels.many if flops else None,
        bytes=sum(moved) / kernels.many if moved else None,
        filled_frac=None if filled is None else 1 - filled.small_frac * (1 - filled.filled_frac),
        peaks=peaks_of(kernels.gpu),
    )


def table(*loads: Load) -> pd.DataFrame:
    """These loads side by side, a row each; shares in per cent, and "-" for what a run does not tell."""
    import pandas as pd

    rows = {
        each.name: {
            "step, ms": f"{each.step_ns / 1e6:.3g}",
            "busy": _percent(each.busy_frac),
            "filled": _percent(each.filled_frac),
            "MFU": _percent(each.mfu_frac),
            "traffic": _percent(each.traffic_frac),
        }
        for each in loads
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def repeats(matrix: Tensor, milliseconds: float) -> int:
    """How many products of this square CUDA matrix with itself the GPU needs so long for, by its own events."""
    import torch

    taken_ms: list[float] = []
    for _ in range(4):  # the first one also loads what it needs, and the host may be late with any: the least is taken
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        _ = matrix @ matrix
        begun.record()
        _ = matrix @ matrix
        ended.record()
        torch.cuda.synchronize()
        taken_ms.append(begun.elapsed_time(ended))
    return max(1, round(milliseconds / min(taken_ms)))


def used_frac() -> float:
    """The share of the CUDA device's memory that is in use, 0-1: what a monitor calls memory used."""
    import torch

    free_bytes, all_bytes = torch.cuda.mem_get_info()
    return float(1 - free_bytes / all_bytes)


def image_network(batch: int) -> Callable[[object], None]:
    """A training step, for CUDA, of a small network on this many images; what the step is called with is not used."""
    import torch
    from torch import nn

    network = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    ).cuda()
    images = torch.randn(batch, 3, 64, 64, device="cuda")
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def step(_: object) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def large_layers(batch: int) -> Callable[[object], None]:
    """Twenty passes, for CUDA, of this many rows through four very large layers, whose weights are read each time."""
    import torch

    layers = [torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    rows = torch.randn(batch, 16384, device="cuda", dtype=torch.bfloat16)

    def step(_: object) -> None:
        for layer in 5 * layers:
            _ = rows @ layer

    return step


def anonymous(steps: int = 8) -> None:
    """Somebody else's job, for CUDA: what it does is to be found from its counters."""
    import torch

    from gpulab.capture.active_session import step

    usual = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        weights = torch.randn(8192, 8192, device="cuda")
        for _ in range(steps):
            _ = weights @ weights
            torch.cuda.synchronize()
            step()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = usual


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"
