"""What other processes have of the GPU: by the driver's lists, or by what this process does not account for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.machine.clocks import FEW, median, of_the_loop, sensed_device
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Coverage
from gpulab.rows import Rows
from gpulab.run import Gpu, Run

# What a process takes beside PyTorch's allocator: its CUDA context, kernels, cuBLAS, cuDNN, NCCL's buffers.
OWN_BYTES = 2 << 30
PERIOD_NS = 1_200_000_000  # the driver's utilisation is of up to a second before


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Of the GPU that worked most, while the loop ran; None where it is not told."""

    gpu: Gpu
    memory_bytes: float | None  # that other processes hold
    util_frac: float | None  # share of the time in which they had a kernel resident
    listed: bool  # the driver's lists tell; else it is what this process does not account for


def sharing(run: Run, steps: Steps) -> Sharing | None:
    """Who else used the GPU; None where nothing tells."""
    device = sensed_device(run)
    rows = of_the_loop(run, steps, device)
    gpu = next((each for place, each in enumerate(run.machine.gpus) if place == device), None)
    if gpu is None or not len(rows):
        return None
    util = rows["others_util_frac"][~np.isnan(rows["others_util_frac"])]
    held, used = median(rows["others_memory_bytes"]), float(util.mean()) if len(util) else None
    listed = held is not None or used is not None
    if not listed:
        held, used = _unaccounted_bytes(run, rows, gpu), _used_meanwhile(run, rows, device)
    return None if held is None and used is None else Sharing(gpu=gpu, memory_bytes=held, util_frac=used, listed=listed)


def _unaccounted_bytes(run: Run, rows: Rows, gpu: Gpu) -> float | None:
    """Memory in use that is neither PyTorch's nor what a process needs beside it, where that is much."""
    mine = run.allocator_rows.where(run.allocator_rows["device"] == gpu.index)
    told = rows.where(~np.isnan(rows["memory_used_bytes"]))
    place = np.searchsorted(mine["at_ns"], told["at_ns"], side="right") - 1
    known = place >= 0
    if not known.any():
        return None
    # The allocator is read where a step begins, and may have grown since: the most around counts.
    after = np.minimum(place + 1, len(mine) - 1)
    reserved = np.maximum(mine["reserved_bytes"][np.maximum(place, 0)], mine["reserved_bytes"][after])
    left = float(np.median((told["memory_used_bytes"] - reserved)[known])) - OWN_BYTES
    return max(0.0, left)


def _used_meanwhile(run: Run, rows: Rows, device: int) -> float | None:
    """How busy the GPU was when this process had asked nothing of it for as long as the driver looks back."""
    windows = np.array(run.recording.windows_ns, np.int64).reshape(-1, 2)
    at = rows["at_ns"]
    inside = np.zeros(len(at), bool)
    for start, end in windows:
        inside |= (at - PERIOD_NS >= start) & (at <= end)
    idle = inside & (Coverage.of(device_work(run, device).spans()).within(at - PERIOD_NS, at) == 0)
    util = rows["util_frac"][idle]
    util = util[~np.isnan(util)]
    return float(util.mean()) if len(util) >= FEW else None
