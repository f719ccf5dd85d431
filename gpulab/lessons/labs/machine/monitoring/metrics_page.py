"""Metrics of containers: what `docker stats` shows, what a cgroup counts, and readings for the Prometheus exporter.

The GPU readings come from a recording of an H100, the reading of the host from this machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpulab.lessons.labs.machine.monitoring.recorded_gpus import recording
from gpulab.watch.clock import Clock
from gpulab.watch.observation import Device, DeviceReading, Observation, Observer
from gpulab.watch.schema import GPU_KIND, HOST_KIND

RECORDING = "h100_03"
CPU_TIME_S = 0.2
# The fields of `docker stats --no-stream --format json` (Docker's reference of `docker container stats`).
DOCKER_STATS_FIELDS = (
    "BlockIO", "CPUPerc", "Container", "ID", "MemPerc", "MemUsage", "Name", "NetIO", "PIDs",
)  # fmt: skip


def recorded_reading() -> dict[str, float]:
    """Return the last reading of NVML in the recording that had a busy GPU, by column of the history."""
    samples = recording(RECORDING).gpu_samples
    row = samples[samples["util_frac"] == 1].iloc[-1]
    names = ("util_frac", "memory_used_bytes", "power_w", "sm_clock_mhz", "temperature_c", "energy_j")
    return {name: float(row[name]) for name in names}


def exporter_observation() -> Observation:
    """Return one reading of this host and of the recorded GPU, as the watcher gives it to an exporter."""
    observer = Observer(Clock())
    try:
        observer.observe()
        time.sleep(CPU_TIME_S)  # the load of the CPU is that between two readings
        here = observer.observe()
    finally:
        observer.close()
    host = next(reading for reading in here.readings if reading.device.kind == HOST_KIND)
    gpu = recording(RECORDING).machine.gpus[0]
    device = Device(uid=gpu.uuid or gpu.name, kind=GPU_KIND, name=gpu.name, memory_bytes=gpu.memory_bytes)
    return Observation(at_s=here.at_s, readings=(host, DeviceReading(device=device, values=recorded_reading())))


def sample_lines(page: str, *names: str) -> str:
    """Return the lines of a page about some metrics, comments included."""
    return "\n".join(line for line in page.splitlines() if any(name in line for name in names))


def cgroup_readings(folder: Path = Path("/sys/fs/cgroup")) -> Mapping[str, float]:
    """Return what the cgroup of this process counts, as `docker stats` reads it: CPU seconds and bytes; NaN if absent.

    Only version 2 is read.
    """
    return {
        "cpu_s": _stat_value(folder / "cpu.stat", "usage_usec") / 1e6,
        "throttled_s": _stat_value(folder / "cpu.stat", "throttled_usec") / 1e6,
        "memory_bytes": _number_in(folder / "memory.current"),
    }


def _stat_value(path: Path, key: str) -> float:
    for line in _text_of(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return float(value)
    return math.nan


def _number_in(path: Path) -> float:
    text: Any = _text_of(path).strip()
    return float(text) if text.isdigit() else math.nan


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
