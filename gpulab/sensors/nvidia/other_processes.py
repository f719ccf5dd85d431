"""Memory and utilisation of a GPU by other processes.

The driver identifies processes by number. In a container, these may be the host's numbers or the container's own: then
other processes in the list are real, but an empty list does not mean that there are none.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from gpulab.sensors.nvidia.nvml_errors import NOT_FOUND, NOT_SUPPORTED, HiddenReading

_INITIAL_NAMESPACE = "pid:[4026531836]"  # fixed number in the Linux kernel (PROC_PID_INIT_INO)
_LOOK_BACK_US = 1_000_000


def others_memory(nvml: Any, gpu: Any) -> tuple[float, ...]:
    """Device memory of processes other than this one and its children."""
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    foreign = _foreign_pids([process.pid for process in processes])
    used = [process.usedGpuMemory for process in processes if process.pid in foreign]
    if None in used:  # Windows does not provide it
        raise nvml.NVMLError(NOT_SUPPORTED)
    if foreign and not any(used):  # inside a container, some drivers list the processes without memory
        raise HiddenReading
    return (float(sum(used)),)


def others_utilisation(nvml: Any, gpu: Any) -> tuple[float, ...]:
    """Share of the last second in which such processes had a kernel resident."""
    since_us = time.time_ns() // 1000 - _LOOK_BACK_US
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(gpu, since_us)
    except nvml.NVMLError as error:
        if error.value not in (0, NOT_FOUND):  # no other process used it: "not found", or success without data
            raise
        samples = []
    foreign = _foreign_pids([sample.pid for sample in samples])
    shares = defaultdict(list)
    for sample in samples:
        if sample.pid in foreign:
            shares[sample.pid].append(sample.smUtil / 100)
    return (min(1.0, sum(map(fmean, shares.values()))),)


def pids_match_driver() -> bool:
    """Whether the driver's process ids are certain to match those seen here, i.e. not in a container."""
    if os.name == "nt":
        return True
    try:
        return Path("/proc/self/ns/pid").readlink() == Path(_INITIAL_NAMESPACE)
    except OSError:
        return False


def _foreign_pids(pids: Collection[int]) -> set[int]:
    """The pids that are not ours; raises Hidden if this cannot be determined."""
    foreign = {pid for pid in pids if not _is_ours(pid)}
    if not pids_match_driver() and (not foreign or foreign == set(pids)):
        raise HiddenReading
    return foreign


def _is_ours(pid: int) -> bool:
    """Whether this is our process, one of its threads (one driver lists these), or a descendant."""
    own_pid = os.getpid()
    if pid == own_pid or Path(f"/proc/self/task/{pid}").exists():
        return True
    try:
        return own_pid in [parent.pid for parent in psutil.Process(pid).parents()]
    except psutil.Error:  # it has ended, or is not visible
        return False
