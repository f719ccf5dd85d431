"""GPU sharing: memory and utilisation of other processes, listed by the driver or inferred."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.machine.clocks import MIN_LOADED_SAMPLES, gpu_samples_in_loop, known_median, sensed_device
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Coverage
from gpulab.rows import Rows
from gpulab.run import Gpu, Run

# Memory of a process outside PyTorch's allocator: CUDA context, kernels, cuBLAS, cuDNN, NCCL buffers.
OWN_BYTES = 2 << 30
PERIOD_NS = 1_200_000_000  # the driver's utilisation covers up to the last second


@dataclass(frozen=True, kw_only=True)
class GpuSharing:
    """Use of the busiest GPU by other processes while the loop ran. None: unknown."""

    gpu: Gpu
    memory_bytes: float | None  # memory of other processes
    util_frac: float | None  # share of the time with a kernel of theirs resident
    listed: bool  # from the driver's process lists; else inferred as not accounted for by this process


def gpu_sharing(run: Run, steps: Steps) -> GpuSharing | None:
    """Compute the use of the GPU by other processes; None if unknown."""
    device = sensed_device(run)
    rows = gpu_samples_in_loop(run, steps, device)
    gpu = next((each for index, each in enumerate(run.machine.gpus) if index == device), None)
    if gpu is None or not len(rows):
        return None
    util = rows["others_util_frac"][~np.isnan(rows["others_util_frac"])]
    memory_bytes, util_frac = known_median(rows["others_memory_bytes"]), float(util.mean()) if len(util) else None
    listed = memory_bytes is not None or util_frac is not None
    if not listed:
        memory_bytes, util_frac = _unaccounted_bytes(run, rows, gpu), _util_while_idle(run, rows, device)
    return (
        None
        if memory_bytes is None and util_frac is None
        else GpuSharing(gpu=gpu, memory_bytes=memory_bytes, util_frac=util_frac, listed=listed)
    )


def _unaccounted_bytes(run: Run, rows: Rows, gpu: Gpu) -> float | None:
    """Return used memory beyond PyTorch's reserved memory and an allowance of OWN_BYTES."""
    allocator = run.allocator_rows.select(run.allocator_rows["device"] == gpu.index)
    known_rows = rows.select(~np.isnan(rows["memory_used_bytes"]))
    index = np.searchsorted(allocator["at_ns"], known_rows["at_ns"], side="right") - 1
    has_reading = index >= 0
    if not has_reading.any():
        return None
    # The allocator is read at the start of a step and may have grown since: the maximum of two readings counts.
    after = np.minimum(index + 1, len(allocator) - 1)
    reserved = np.maximum(allocator["reserved_bytes"][np.maximum(index, 0)], allocator["reserved_bytes"][after])
    other_bytes = float(np.median((known_rows["memory_used_bytes"] - reserved)[has_reading])) - OWN_BYTES
    return max(0.0, other_bytes)


def _util_while_idle(run: Run, rows: Rows, device: int) -> float | None:
    """Return the utilisation in samples before which this process was idle for the whole period of the driver."""
    windows = np.array(run.recording.windows_ns, np.int64).reshape(-1, 2)
    at = rows["at_ns"]
    inside = np.zeros(len(at), bool)
    for start, end in windows:
        inside |= (at - PERIOD_NS >= start) & (at <= end)
    idle = inside & (Coverage.of(device_work(run, device).spans()).covered_ns(at - PERIOD_NS, at) == 0)
    util = rows["util_frac"][idle]
    util = util[~np.isnan(util)]
    return float(util.mean()) if len(util) >= MIN_LOADED_SAMPLES else None
