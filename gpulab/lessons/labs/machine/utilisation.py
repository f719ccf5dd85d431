"""Four measures of GPU utilisation: busy time, MFU, memory bandwidth, and multiprocessors in use.

All four are fractions of the same steps, which a single "utilisation" would mix up; None if unknown for a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.occupancy import gpu_fill
from gpulab.analysis.kernels.roofline import operator_work
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError
from gpulab.extras import require_extra
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.run import Run
from gpulab.wording import number, percent

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from torch import Tensor

SOFTMAX_FLOPS = 5  # for each number: compare, subtract, exponential, add, divide


@dataclass(frozen=True, kw_only=True)
class GpuLoad:
    """Utilisation over the complete recorded steps of a run. Fractions are 0-1."""

    name: str
    steps: int
    step_ns: float  # mean
    busy_frac: float  # time with at least one kernel or copy on the GPU; the driver counts kernels only
    flops: float | None  # mean of a step: matrix products and convolutions only
    bytes: float | None  # mean of a step: the least memory traffic that its operators need
    filled_frac: float | None  # multiprocessors that have a thread block, weighted by kernel time
    spec: GpuSpec | None

    @property
    def mfu_frac(self) -> float | None:
        """Model FLOPs utilisation (MFU): FLOPs done / FLOPs that tensor cores could do in 16 bits in the same time."""
        if self.flops is None or self.spec is None:
            return None
        return self.flops / (self.step_ns / 1e9) / self.spec.half_flops_per_s

    @property
    def traffic_frac(self) -> float | None:
        """Memory traffic / traffic at peak memory bandwidth in the same time."""
        if self.bytes is None or self.spec is None:
            return None
        return self.bytes / (self.step_ns / 1e9) / self.spec.memory_bytes_per_s


def gpu_load(run: Run) -> GpuLoad:
    """Measure how a run used its GPU. Raises RunError if no GPU work was recorded in complete steps."""
    run_steps = find_steps(run)
    step_ledger = build_ledger(run, run_steps)
    kernels = interior_kernels(run, run_steps, step_ledger) if step_ledger is not None else None
    if step_ledger is None or kernels is None:
        raise RunError(
            f"The GPU utilisation of run {run.name} is unknown.",
            why="it has no kernels in complete recorded steps",
            fix="call gpulab.step() after each step, several times, or train with an optimizer or a DataLoader, in a "
            "block of L.gpu or a cell with %%gpuprofile --virtual auto",
        )
    operators = operator_work(kernels)
    flops = [each.flops * each.count for each in operators if each.flops is not None]
    traffic = [each.bytes * each.count for each in operators if each.bytes is not None]
    fill = gpu_fill(kernels)
    return GpuLoad(
        name=run.name,
        steps=kernels.step_count,
        step_ns=float(step_ledger.step_ns.mean()),
        busy_frac=step_ledger.busy_frac,
        flops=sum(flops) / kernels.step_count if flops else None,
        bytes=sum(traffic) / kernels.step_count if traffic else None,
        filled_frac=None if fill is None else 1 - fill.small_frac * (1 - fill.filled_frac),
        spec=spec_of(kernels.gpu),
    )


def utilisation_table(*loads: GpuLoad) -> pd.DataFrame:
    """Compare runs, one row each; fractions in per cent, and "-" for unknown values."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    rows = {
        each.name: {
            "step, ms": number(each.step_ns / 1e6),
            "busy": _percent(each.busy_frac),
            "filled": _percent(each.filled_frac),
            "MFU": _percent(each.mfu_frac),
            "traffic": _percent(each.traffic_frac),
        }
        for each in loads
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def matmul_repeats(matrix: Tensor, milliseconds: float) -> int:
    """Return how many products of this square CUDA matrix with itself take `milliseconds`, timed with CUDA events."""
    import torch

    times_ms: list[float] = []
    for _ in range(4):  # the minimum: the first call also initialises, and a late host can delay any
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        _ = matrix @ matrix
        start.record()
        _ = matrix @ matrix
        end.record()
        torch.cuda.synchronize()
        times_ms.append(start.elapsed_time(end))
    return max(1, round(milliseconds / min(times_ms)))


def memory_used_frac() -> float:
    """Return the fraction of the CUDA device's memory in use, 0-1: "memory used" of a monitor."""
    import torch

    free_bytes, all_bytes = torch.cuda.mem_get_info()
    return float(1 - free_bytes / all_bytes)


def image_training_step(batch: int) -> Callable[[object], None]:
    """Return a CUDA training step of a small network on a batch of images; the argument of the step is ignored."""
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


def large_layers_step(batch: int) -> Callable[[object], None]:
    """Return a CUDA step: a batch of rows through four very large layers, five times, reading the weights each time."""
    import torch

    layers = [torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    rows = torch.randn(batch, 16384, device="cuda", dtype=torch.bfloat16)

    def step(_: object) -> None:
        for layer in 5 * layers:
            _ = rows @ layer

    return step


def unknown_job(steps: int = 8) -> None:
    """Run an unknown CUDA job: the exercise is to identify it by its counters."""
    import torch

    from gpulab.capture.active_session import step

    allow_tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        weights = torch.randn(8192, 8192, device="cuda")
        for _ in range(steps):
            _ = weights @ weights
            torch.cuda.synchronize()
            step()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32


def _percent(frac: float | None) -> str:
    return "-" if frac is None else percent(frac, figures=3)
