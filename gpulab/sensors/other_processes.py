"""What other processes have of a GPU: their memory, and how much of the time they use it.

The driver tells of processes by number. In a container these numbers may be those of the host, or those of the
container alone: then other processes that are seen are there, and that none is seen says nothing.
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

from gpulab.sensors.nvml_errors import NOT_FOUND, NOT_SUPPORTED, Hidden

_FIRST = "pid:[4026531836]"  # the Linux kernel gives the first namespace this number for ever (PROC_PID_INIT_INO)
_LOOK_BACK_US = 1_000_000


def others_memory(nvml: Any, gpu: Any) -> tuple[float, ...]:
    """Device memory of the processes that are neither this one nor its children."""
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    foreign = _strangers([each.pid for each in listed])
    used = [each.usedGpuMemory for each in listed if each.pid in foreign]
    if None in used:  # Windows keeps it to itself
        raise nvml.NVMLError(NOT_SUPPORTED)
    if foreign and not any(used):  # inside a container some drivers list the processes, with no memory at all
        raise Hidden
    return (float(sum(used)),)


def others_utilisation(nvml: Any, gpu: Any) -> tuple[float, ...]:
    """The share of the last second in which such processes had a kernel resident."""
    since_us = time.time_ns() // 1000 - _LOOK_BACK_US
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(gpu, since_us)
    except nvml.NVMLError as error:
        if error.value not in (0, NOT_FOUND):  # nobody used it: "not found", or success with nothing to tell
            raise
        samples = []
    foreign = _strangers([each.pid for each in samples])
    shares = defaultdict(list)
    for each in samples:
        if each.pid in foreign:
            shares[each.pid].append(each.smUtil / 100)
    return (min(1.0, sum(map(fmean, shares.values()))),)


def numbers_are_ours() -> bool:
    """Whether the driver numbers processes as this process sees them, for certain: it is in no container."""
    if os.name == "nt":
        return True
    try:
        return Path("/proc/self/ns/pid").readlink() == Path(_FIRST)
    except OSError:
        return False


def _strangers(pids: Collection[int]) -> set[int]:
    """The processes among these that are not ours; raises Hidden where that cannot be told."""
    foreign = {pid for pid in pids if not _ours(pid)}
    if not numbers_are_ours() and (not foreign or foreign == set(pids)):
        raise Hidden
    return foreign


def _ours(pid: int) -> bool:
    """This process, one of its threads (a driver was seen to list one), or a child of a child of it."""
    mine = os.getpid()
    if pid == mine or Path(f"/proc/self/task/{pid}").exists():
        return True
    try:
        return mine in [parent.pid for parent in psutil.Process(pid).parents()]
    except psutil.Error:  # it is gone, or out of sight
        return False
