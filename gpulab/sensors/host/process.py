"""Sensors of the host, through /proc or psutil: CPU, memory, storage reads, throttling and preemption.

To add a sensor, add its column in gpulab.sensor_tables and its reading function in SENSORS.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gpulab.run import Gap
from gpulab.sensor_tables import HOST_SAMPLES
from gpulab.sensors.host.cgroup import Throttling, memory_limit_bytes
from gpulab.sensors.host.cpu_energy import CpuEnergy
from gpulab.sensors.host.proc_files import PROC, CpuTimes, ProcFiles

if sys.platform == "win32":
    _usage = None
else:
    import resource

    def _usage() -> resource.struct_rusage:
        return resource.getrusage(resource.RUSAGE_SELF)


_LEAST_TICKS_S = 0.03  # the kernel counts CPU time in ticks of 10 ms: a share of less than a few ticks is noise


def allocatable_bytes() -> int:
    """Memory that this process can still allocate: free memory, or what is left of its container's limit."""
    limit, free = memory_limit_bytes(), int(psutil.virtual_memory().available)
    return free if limit is None else max(0, min(free, limit - int(psutil.Process().memory_info().rss)))


class UnavailableReading(Exception):  # noqa: N818  (an answer, not an error)
    """This system cannot provide a reading; the text says why, `fix` what would help."""

    def __init__(self, why: str, fix: str = "run on Linux as the user who owns the processes") -> None:
        super().__init__(why)
        self.fix = fix


@dataclass(frozen=True, kw_only=True, eq=False)
class HostSensor:
    """A reading of the host: the columns of HOST_SAMPLES it fills, and the function that reads them.

    `read` returns a value per column, in the column's unit; NaN if there is none this time. It raises
    UnavailableReading if there never will be one: then it is not called again, and a gap says why.

    `every`: it is read in every n-th round only, and its value is repeated meanwhile: for a slow reading of a level. A
    repeated counter would show no increase, and a repeated load would belong to another interval.
    """

    columns: tuple[str, ...]
    read: Callable[[HostSensors], tuple[float, ...]]
    every: int = 1

    @property
    def label(self) -> str:
        """Display name: the label of its first column."""
        return HOST_SAMPLES.column(self.columns[0]).label


class HostSensors:
    """Reads the columns of HOST_SAMPLES about the whole process and the machine.

    The first reading has no load, which needs two readings. `close` it after the last one.
    """

    def __init__(self, cpu_times: Callable[[], Sequence[Any]] | None = None, proc: Path = PROC) -> None:
        self.process = psutil.Process()
        self.files = ProcFiles(proc)
        self.throttling = Throttling()
        self.cpu_energy = CpuEnergy()
        self.core_fracs: tuple[float, ...] = ()  # the latest load of each core
        self._cpu_times = cpu_times
        self._before: list[CpuTimes] = []
        self._unreadable: dict[HostSensor, Gap] = {}
        self._latest: dict[HostSensor, tuple[float, ...]] = {}
        self._round = 0

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Failed readings, with reasons."""
        return tuple(self._unreadable.values())

    def read(self) -> dict[str, float]:
        """The columns by name; NaN if unknown."""
        values: dict[str, float] = {}
        for sensor in SENSORS:
            if self._round % sensor.every == 0:
                self._latest[sensor] = self._read_sensor(sensor)
            values.update(zip(sensor.columns, self._latest[sensor], strict=True))
        self._round += 1
        return values

    def refresh(self) -> None:
        """Read every sensor in the next round."""
        self._round = 0

    def core_shares(self) -> tuple[CpuTimes, ...]:
        """Shares of each core since the previous call; () if too little time has passed."""
        now = self._core_times()
        if len(now) != len(self._before):  # the first reading, or a core was switched on or off
            self._before = now
            return ()
        passed = [
            CpuTimes(*(a - b for a, b in zip(*pair, strict=True))) for pair in zip(now, self._before, strict=True)
        ]
        if min((core.total for core in passed), default=0.0) < _LEAST_TICKS_S:
            return ()
        self._before = now
        return tuple(CpuTimes(_share(core.busy, core.total), _share(core.waiting, core.total), 1.0) for core in passed)

    def close(self) -> None:
        """Close the files; later readings are slower."""
        self.files.close()

    def _core_times(self) -> list[CpuTimes]:
        if self._cpu_times is None and (times := self.files.core_times()) is not None:
            return times
        read = self._cpu_times or (lambda: psutil.cpu_times(percpu=True))
        return [_cpu_seconds(times) for times in read()]

    def _read_sensor(self, sensor: HostSensor) -> tuple[float, ...]:
        nothing = (math.nan,) * len(sensor.columns)
        if sensor in self._unreadable:
            return nothing
        try:
            return sensor.read(self)
        except UnavailableReading as error:
            self._unreadable[sensor] = Gap(what=sensor.label, why=str(error), fix=error.fix)
            return nothing


def _cpu_load(host: HostSensors) -> tuple[float, ...]:
    cores = host.core_shares()
    host.core_fracs = tuple(core.busy for core in cores) or host.core_fracs
    return _mean(core.busy for core in cores), _mean(core.waiting for core in cores)


def _process_cpu(host: HostSensors) -> tuple[float, ...]:
    return (time.process_time(),)


def _resident_memory(host: HostSensors) -> tuple[float, ...]:
    rss_bytes = host.files.rss_bytes()
    return (float(host.process.memory_info().rss) if rss_bytes is None else rss_bytes,)


def _available_memory(host: HostSensors) -> tuple[float, ...]:
    return (float(psutil.virtual_memory().available),)


def _read_bytes(host: HostSensors) -> tuple[float, ...]:
    if (read_bytes := host.files.read_bytes()) is not None:
        return (read_bytes,)
    if not hasattr(host.process, "io_counters"):
        raise UnavailableReading(f"{sys.platform} does not provide it to psutil")
    try:
        return (float(host.process.io_counters().read_bytes),)
    except (psutil.AccessDenied, NotImplementedError, OSError):
        raise UnavailableReading("the system denies access to /proc/self/io") from None


def _swapped_in(host: HostSensors) -> tuple[float, ...]:
    if (swapped_bytes := host.files.swapped_in_bytes()) is not None:
        return (swapped_bytes,)
    return (float(psutil.swap_memory().sin),)


def _throttled(host: HostSensors) -> tuple[float, ...]:
    return (host.throttling.read(),)


def _cpu_energy(host: HostSensors) -> tuple[float, ...]:
    energy_j = host.cpu_energy.read()
    if host.cpu_energy.why:
        raise UnavailableReading(host.cpu_energy.why, host.cpu_energy.fix)
    return (energy_j,)


def _preemptions(host: HostSensors) -> tuple[float, ...]:
    # Of all threads: /proc/self/status counts those of the main thread only.
    if _usage is None:
        raise UnavailableReading(f"{sys.platform} does not provide it")
    return (float(_usage().ru_nivcsw),)


# Single threads are read by gpulab.sensors.host.threads, DataLoader workers by gpulab.sensors.host.workers.
SENSORS = (
    HostSensor(columns=("cpu_frac", "iowait_frac"), read=_cpu_load),
    HostSensor(columns=("process_cpu_s",), read=_process_cpu),
    HostSensor(columns=("rss_bytes",), read=_resident_memory),
    HostSensor(columns=("memory_available_bytes",), read=_available_memory, every=10),
    HostSensor(columns=("read_bytes",), read=_read_bytes),
    HostSensor(columns=("throttled_s",), read=_throttled),
    HostSensor(columns=("swapped_in_bytes",), read=_swapped_in),
    HostSensor(columns=("cpu_energy_j",), read=_cpu_energy),
    HostSensor(columns=("preempted",), read=_preemptions),
)


def _cpu_seconds(times: Any) -> CpuTimes:
    """CPU seconds of work and in total. Guest time is part of `user` already; waiting for storage is not work."""
    seconds: Mapping[str, float] = times._asdict()
    every = sum(seconds.values()) - seconds.get("guest", 0.0) - seconds.get("guest_nice", 0.0)
    busy = every - seconds.get("idle", 0.0) - seconds.get("iowait", 0.0)
    return CpuTimes(busy, seconds.get("iowait", math.nan), every)


def _share(part: float, every: float) -> float:
    """A share within 0 and 1: counters of a virtual machine can run backwards by a tick."""
    return part if math.isnan(part) else min(1.0, max(0.0, part / every))


def _mean(values: Iterable[float]) -> float:
    numbers = tuple(values)
    return sum(numbers) / len(numbers) if numbers else math.nan
