"""The processes that compute on a GPU, as the driver lists them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gpulab.sensors.nvidia.nvml_errors import NOT_FOUND

_LOOK_BACK_US = 1_000_000


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process on a GPU; None: the driver does not say. In a container, the pid may be that of the host."""

    pid: int
    memory_bytes: float | None = None
    sm_frac: float | None = None  # share of the last second with a kernel of this process resident


def read_processes(nvml: Any, gpu: Any) -> tuple[GpuProcess, ...]:
    """Return the processes with a CUDA context on this GPU. Raises NVMLError if the driver does not list them."""
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    shares = _shares(nvml, gpu) if listed else {}
    return tuple(
        GpuProcess(
            pid=process.pid,
            memory_bytes=None if process.usedGpuMemory is None else float(process.usedGpuMemory),
            sm_frac=None if shares is None else shares.get(process.pid, 0.0),
        )
        for process in listed
    )


def _shares(nvml: Any, gpu: Any) -> dict[int, float] | None:
    """Return the mean share of each process in the last second; None if the driver does not measure it."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(gpu, time.time_ns() // 1000 - _LOOK_BACK_US)
    except nvml.NVMLError as error:
        # No process computed: "not found", or success without data.
        return {} if error.value in (0, NOT_FOUND) else None
    shares: defaultdict[int, list[float]] = defaultdict(list)
    for sample in samples:
        shares[sample.pid].append(sample.smUtil / 100)
    return {pid: min(1.0, fmean(values)) for pid, values in shares.items()}
