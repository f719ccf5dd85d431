"""Compare virtual and real GPU on gpulab's workloads: step time, peak memory, first finding.

    python benchmarks/virtual/hardware.py [--gpu h200] [--steps 30] [--out measured.json]

Needs an NVIDIA GPU. Each workload runs twice, each time in a separate process: on the
real GPU, under gpulab.profile, and on the virtual GPU with the real one hidden. `--virtual-only` skips the real one
and needs no GPU: it shows the values that would be compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import gpulab  # noqa: E402
from gpulab.analysis.steps.detection import find_steps as steps_of  # noqa: E402
from gpulab.errors import RunError  # noqa: E402
from gpulab.hardware.gpu_spec import GpuSpec  # noqa: E402
from gpulab.hardware.gpus import SPECS  # noqa: E402
from gpulab.virtual.memory_fit.memory_peaks import non_torch_memory  # noqa: E402
from gpulab.workloads import workload  # noqa: E402

NAMES = (
    *("copies_pageable", "copies_ahead", "results_fetched", "results_kept", "noise_on_device", "moved_to_gpu"),
    *("attention_by_hand", "attention_in_one", "products_float32", "products_tf32", "products_half", "products_odd"),
    *("channels_first", "channels_last", "few_sequences", "many_sequences", "emptied_cache", "kept_cache"),
    *("tiny_ops", "tiny_ops_batched", "by_hand", "in_one", "parameters", "parameters_fused"),
)
VIRTUAL_STEPS = 10  # a virtual step is always the same


def main() -> None:
    """Run all workloads, print the table, save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", help="the virtual GPU; by default the one that is here")
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--steps", type=int, default=60, help="of the real runs")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures, with GPU, date and versions")
    parser.add_argument("--virtual-only", action="store_true", help="leave the real GPU out")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "WHERE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, side = arguments.one
        print(json.dumps(real(name, arguments.steps) if side == "real" else virtual(name, side)))
        return
    gpu = arguments.gpu or this_gpu()
    rows = []
    print(f"{'workload':20} measured ms virtual ms           range     off peak off  first finding")
    for name in arguments.names:
        real_result = None if arguments.virtual_only else told(name, "real", arguments.steps)
        played = told(name, gpu, arguments.steps)
        rows.append({"workload": name, "real": real_result, "virtual": played})
        print(line(name, real_result, played), flush=True)
    if not arguments.virtual_only:
        print(summary(rows))
    if arguments.out:
        versions = {"gpulab": gpulab.__version__, "torch": torch.__version__}
        about = {"gpu": gpu, "date": datetime.date.today().isoformat(), **versions}
        arguments.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def this_gpu() -> str:
    """Return the name of this machine's GPU as a virtual GPU. Raises RunError if it is unknown."""
    driver_name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    name = next((spec.name for spec in SPECS if spec.driver_name == driver_name), None)
    if name is None:
        raise RunError(
            f"There is no virtual GPU for this machine's GPU: {driver_name}.",
            why=f"the virtual GPUs are {', '.join(spec.name for spec in SPECS)}",
            fix="name the closest one: --gpu h100",
        )
    return name


def told(name: str, side: str, steps: int) -> dict[str, Any]:
    """Run one workload in a separate process."""
    hidden = {} if side == "real" else {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, "--one", name, side, "--steps", str(steps)]
    done = subprocess.run(
        command, env={**os.environ, **hidden, "GPULAB_HISTORY": "off"}, stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def real(name: str, steps: int) -> dict[str, Any]:
    """Measured: the step without the profiler, the peak of what PyTorch gave out, what is found first."""
    workload(name).run(device="cuda", steps=3)  # libraries are loaded, kernels chosen
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with gpulab.profile(name) as session:
        workload(name).run(device="cuda", steps=steps)
        torch.cuda.synchronize()
    run = session.run
    assert run is not None
    diagnosis = gpulab.diagnose(run)
    return {
        "step_ns": steps_of(run).step_ns,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "first": diagnosis.first.rule if diagnosis.first else None,
    }


def virtual(name: str, gpu: str) -> dict[str, Any]:
    """Estimated: the same of a virtual GPU, with the range of the step."""
    with gpulab.virtual_gpu(gpu, name) as played:
        workload(name).run(device="cuda", steps=VIRTUAL_STEPS)
    assert played.run is not None
    diagnosis = gpulab.diagnose(played.run)
    low, high = played.step_range_ns
    return {
        "step_ns": played.step_ns,
        "low_ns": low,
        "high_ns": high,
        # PyTorch counts the workspaces of cuBLAS as allocated.
        "peak_bytes": played.memory.max_allocated_bytes + cublas_workspace_bytes(played.spec),
        "first": diagnosis.first.rule if diagnosis.first else None,
    }


def cublas_workspace_bytes(spec: GpuSpec) -> int:
    """The workspaces that PyTorch gives cuBLAS: 64 MiB on an H100, as measured."""
    return next(each.bytes for each in non_torch_memory(spec) if each.name == "cuBLAS workspaces")


def line(name: str, real_result: dict[str, Any] | None, played: dict[str, Any]) -> str:
    """A row of the table."""
    estimated = f"{played['step_ns'] / 1e6:10.2f} {played['low_ns'] / 1e6:7.2f}-{played['high_ns'] / 1e6:.2f}"
    if real_result is None:
        return f"{name:20} {'-':>11} {estimated:26} {'':7} {played['peak_bytes'] / 2**20:6.0f} MiB  {played['first']}"
    off = played["step_ns"] / real_result["step_ns"] - 1
    peak = played["peak_bytes"] / real_result["peak_bytes"] - 1
    same = "the same" if real_result["first"] == played["first"] else f"{real_result['first']}, not {played['first']}"
    return f"{name:20} {real_result['step_ns'] / 1e6:11.2f} {estimated:26} {off:+7.0%} {peak:+8.1%}  {same}"


def summary(rows: list[dict[str, Any]]) -> str:
    """How often it was right."""
    pairs = [(row["real"], row["virtual"]) for row in rows]
    off = sorted(abs(played["step_ns"] / real_result["step_ns"] - 1) for real_result, played in pairs)
    inside = sum(played["low_ns"] <= real_result["step_ns"] <= played["high_ns"] for real_result, played in pairs)
    peaks = max(abs(played["peak_bytes"] / real_result["peak_bytes"] - 1) for real_result, played in pairs)
    same = sum(real_result["first"] == played["first"] for real_result, played in pairs)
    return (
        f"{len(pairs)} workloads: step off by {off[len(off) // 2]:.0%} (median), inside the range {inside}; "
        f"peak off by {peaks:.1%} at most; the same first finding {same}"
    )


if __name__ == "__main__":
    main()
