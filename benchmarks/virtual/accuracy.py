"""How right the virtual GPU's prices are: transformers that others measured, against what we say without a GPU.

The measurements are NeuSight's (MIT licence): float32 without TF32, batches and models as listed, milliseconds for
one iteration, on GPUs that wait for no host. The models run on gpulab's own virtual GPU, with two layers and with
three: each further layer costs what the third one does. `switchxl4`, a mixture of experts, is left out: its routing
depends on values, and values are what we do not have. P100 and P4 are no GPUs of gpulab's: the benchmark brings their
sheets, and P4 takes the shares of its likest relative, the T4.

What was fitted, and to what. Shares of the peaks are medians of measured kernels
(gpulab/virtual/cost_model/rates.py); tile and split sizes, fixed times and the price of odd sizes are from kernels in
published traces. Nothing was fitted to these points. What one iteration computes is what NeuSight's script for
measuring runs. It also empties the allocator's cache before each iteration, so that the times contain calls of
cudaMalloc; these are not counted here. The L4's share of its float32 peak,
which no point here asks for, lies between the median of its kernels and what whole networks had shown. Convolutions
on tensor cores, which do not occur here, were set once by NVIDIA's published throughput of ResNet-50.

    python benchmarks/virtual/accuracy.py            # GPULAB_SHARED names the folder with measured/
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean, median

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.virtual.models import counted  # noqa: E402
from gpulab.hardware.gpu_spec import GpuSpec, Shares  # noqa: E402
from gpulab.hardware.lookup import resolve  # noqa: E402
from gpulab.virtual.cost_model.operators import COST_FACTORS, OpClass, kernels_of  # noqa: E402
from gpulab.virtual.op_log.ops import Op  # noqa: E402

LEFT_OUT = ("switchxl4",)
DRAWS = 400
NORMAL_P90 = 1.2816  # standard deviations
TARGETS = {"mean": 0.05, "median": 0.05, "order": 0.95, "held": 0.85}
MODES = {"train": "training", "inf": "inference"}


@dataclass(frozen=True)
class Point:
    """One measured iteration, and our estimate."""

    model: str
    length: int
    batch: int
    mode: str
    gpu: str
    measured_ms: float
    said_ms: float
    low_ms: float  # the 10th percentile of what it may be
    high_ms: float  # the 90th
    theirs_ms: float  # NeuSight's own prediction

    @property
    def off(self) -> float:
        """Our relative error: 0.1 is 10 % too slow."""
        return self.said_ms / self.measured_ms - 1

    @property
    def held(self) -> bool:
        """Whether the range contains the measurement."""
        return self.low_ms <= self.measured_ms <= self.high_ms


# GPUs older than those that gpulab lists; the figures are their maker's, the shares MEDIANS as in gpulab.hardware.gpus.
P100_SHARES = Shares(
    streaming=0.745, softmax=0.42, layer_norm=0.46, float32_gemm=0.70, float32_conv=0.72, half_gemm=0.70, tf32_gemm=0.0,
    tensor_core_conv=0.75, flash_attention=0.30,
)  # fmt: skip
PASCAL = replace(
    resolve("t4"), tf32_flops_per_s=None, bfloat16_flops_per_s=None, context_bytes=0, sm_clock_mhz=1303, idle_w=30,
    power_limit_w=250, source="NVIDIA's data sheet", aliases=(),
)  # fmt: skip
P100 = replace(
    PASCAL, name="P100", driver_name="Tesla P100-PCIE-16GB", compute_capability="6.0", multiprocessors=56,
    float32_flops_per_s=9.3e12, half_flops_per_s=18.6e12, memory_bytes_per_s=732e9, memory_bytes=16 * 10**9,
    usable_bytes=16 * 10**9, l2_bytes=4 * 2**20, shares=P100_SHARES,
)  # fmt: skip
P4 = replace(  # the shares of a T4, its likeliest relative
    PASCAL, name="P4", driver_name="Tesla P4", compute_capability="6.1", multiprocessors=20,
    float32_flops_per_s=5.5e12, half_flops_per_s=11e12, memory_bytes_per_s=192e9, memory_bytes=8 * 10**9,
    usable_bytes=8 * 10**9, l2_bytes=2 * 2**20,
)  # fmt: skip
OLDER = {"Tesla_P100-PCIE-16GB": P100, "Tesla_P4": P4}


def gpu_of(device: str) -> GpuSpec:
    """The GPU by the name it was measured under."""
    return OLDER.get(device) or resolve(device.replace("_", " "))


def by_class(ops: list[Op], gpu: GpuSpec) -> dict[OpClass, float]:
    """Milliseconds of these operators' kernels, by class of work."""
    totals: dict[OpClass, float] = {}
    for op in ops:
        for kernel in kernels_of(op, gpu):
            totals[kernel.op_class] = totals.get(kernel.op_class, 0.0) + kernel.ns / 1e6
    return totals


@cache
def run_of(model: str, length: int, batch: int, mode: str) -> tuple[list[Op], list[Op], int]:
    """Operators of two and of three layers, and how many layers the model has."""
    return counted(model, length, batch, mode)


def said(model: str, length: int, batch: int, mode: str, gpu: GpuSpec) -> dict[OpClass, float]:
    """Milliseconds of one iteration, by class of work: each further layer costs what the third one does."""
    two, three, layers = run_of(model, length, batch, mode)
    less, more = by_class(two, gpu), by_class(three, gpu)
    return {of: less.get(of, 0.0) + (layers - 2) * (ms - less.get(of, 0.0)) for of, ms in more.items()}


def ranged(ms: dict[OpClass, float]) -> tuple[float, float]:
    """The 10th and 90th percentile of the sum, classes independent of one another."""
    random = np.random.default_rng(0)
    total = np.zeros(DRAWS)
    for of in sorted(ms, key=lambda each: each.name):
        best, worst = COST_FACTORS[of]
        draw = random.standard_normal(DRAWS) / NORMAL_P90
        total += ms[of] * np.where(draw < 0, best ** np.abs(draw), worst ** np.abs(draw))
    low, high = np.percentile(total, [10, 90])
    return float(low), float(high)


def points(path: Path) -> list[Point]:
    """Return every measured point with our estimate."""
    measured_points = []
    with path.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["model"] not in LEFT_OUT]
    for row in rows:
        key = row["model"], int(row["seqlen"]), int(row["batch"]), row["mode"]
        ms = said(*key, gpu_of(row["device"]))
        low, high = ranged(ms)
        measured, neusight_ms = float(row["measured_ms"]), float(row["neusight_ms"])
        measured_points.append(Point(*key, row["device"], measured, sum(ms.values()), low, high, neusight_ms))
    return measured_points


def order(measured_points: list[Point]) -> tuple[int, int]:
    """Pairs of GPUs at the same work: how many are in the right order, of how many."""
    same: dict[tuple[str, int, int, str], list[Point]] = {}
    for each in measured_points:
        same.setdefault((each.model, each.length, each.batch, each.mode), []).append(each)
    pairs = [pair for group in same.values() for pair in combinations(group, 2)]
    right = sum((a.measured_ms < b.measured_ms) == (a.said_ms < b.said_ms) for a, b in pairs)
    return right, len(pairs)


def summary(measured_points: list[Point]) -> dict[str, float]:
    """The four figures that targets are set for."""
    off = [abs(each.off) for each in measured_points]
    right, pairs = order(measured_points)
    inside = mean(each.held for each in measured_points)
    return {"mean": mean(off), "median": median(off), "order": right / max(1, pairs), "held": inside}


def report(measured_points: list[Point]) -> str:
    """Every point, then each GPU, then all."""
    lines = ["| model | batch | mode | GPU | measured | ours | error | range | NeuSight's |", "|" + "---|" * 9]
    lines += [
        f"| {each.model} {each.length} | {each.batch} | {each.mode} | {gpu_of(each.gpu).name} | "
        f"{each.measured_ms:.0f} ms | {each.said_ms:.0f} ms | {each.off:+.1%} | "
        f"{each.low_ms:.0f} to {each.high_ms:.0f}{'' if each.held else ' (missed)'} | "
        f"{each.theirs_ms / each.measured_ms - 1:+.1%} |"
        for each in measured_points
    ]
    lines += ["", "| GPU | points | mean error | median | theirs |", "|" + "---|" * 5]
    for gpu in dict.fromkeys(each.gpu for each in measured_points):
        of_gpu = [each for each in measured_points if each.gpu == gpu]
        off = [abs(each.off) for each in of_gpu]
        neusight_error = mean(abs(each.theirs_ms / each.measured_ms - 1) for each in of_gpu)
        lines.append(
            f"| {gpu_of(gpu).name} | {len(of_gpu)} | {mean(off):.1%} | {median(off):.1%} | {neusight_error:.1%} |"
        )
    for mode, name in MODES.items():
        of_mode = [each for each in measured_points if each.mode == mode]
        off = [abs(each.off) for each in of_mode]
        theirs = mean(abs(each.theirs_ms / each.measured_ms - 1) for each in of_mode)
        lines.append(f"| {name} | {len(of_mode)} | {mean(off):.1%} | {median(off):.1%} | {theirs:.1%} |")
    figures, (right, pairs) = summary(measured_points), order(measured_points)
    lines += [
        "",
        f"{len(measured_points)} points: mean error {figures['mean']:.1%} (target {TARGETS['mean']:.0%}), median "
        f"{figures['median']:.1%} ({TARGETS['median']:.0%}); GPUs in the right order in {right} of {pairs} pairs "
        f"({TARGETS['order']:.0%}); the range holds the measurement in {figures['held']:.0%} ({TARGETS['held']:.0%}).",
    ]
    return "\n".join(lines)


def main() -> int:
    """Print everything; return 1 if a target is missed."""
    shared = Path(os.environ.get("GPULAB_SHARED", ROOT.parent / "shared"))
    path = shared / "measured" / "transformer_latency.csv"
    if not path.exists():
        print(f"Skipped: there is no {path.name} in {path.parent}; set GPULAB_SHARED to where measured/ lies.")
        return 0
    measured_points = points(path)
    print(report(measured_points))
    figures = summary(measured_points)
    met = figures["mean"] <= TARGETS["mean"] and figures["median"] <= TARGETS["median"]
    return 0 if met and figures["order"] >= TARGETS["order"] and figures["held"] >= TARGETS["held"] else 1


if __name__ == "__main__":
    sys.exit(main())
