"""What the host can be asked, through psutil: CPU, memory, reads from storage, and who holds this process back."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from gpulab.run import Gap
from gpulab.sensors.host.cgroup import Throttling, memory_limit_bytes

if sys.platform == "win32":
    _usage = None
else:
    import resource

    def _usage() -> resource.struct_rusage:
        return resource.getrusage(resource.RUSAGE_SELF)


_LEAST_TICKS_S = 0.03  # the kernel counts CPU time in ticks of 10 ms: over less than a few, a share is a lottery


class Spent(NamedTuple):
    """CPU seconds of one core, or of several together."""

    busy: float
    waiting: float  # idle with a read or write outstanding; NaN where the system does not tell
    every: float


def free_bytes() -> int:
    """How much memory this process can still take: of what is free, and of what its container leaves it."""
    limit, free = memory_limit_bytes(), int(psutil.virtual_memory().available)
    return free if limit is None else max(0, min(free, limit - int(psutil.Process().memory_info().rss)))


class Host:
    """Reads the columns of HOST_SAMPLES that are about the whole process and the machine.

    The first reading has no load: a share needs a time to be of.
    """

    def __init__(self, cpu_times: Callable[[], Sequence[Any]] | None = None) -> None:
        self._cpu_times = cpu_times or (lambda: psutil.cpu_times(percpu=True))
        self._process = psutil.Process()
        self._throttling = Throttling()
        self._before: list[Spent] = []
        self._unreadable: dict[str, Gap] = {}
        self.core_fracs: tuple[float, ...] = ()  # the latest load of each core

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be read, and why."""
        return tuple(self._unreadable.values())

    def read(self) -> dict[str, float]:
        """The columns by name; NaN where the system does not tell."""
        cores = self._read_cores()
        self.core_fracs = tuple(core.busy for core in cores) or self.core_fracs
        return {
            "cpu_frac": _mean(core.busy for core in cores),
            "iowait_frac": _mean(core.waiting for core in cores),
            "process_cpu_s": time.process_time(),
            "rss_bytes": float(self._process.memory_info().rss),
            "memory_available_bytes": float(psutil.virtual_memory().available),
            "read_bytes": self._read_bytes(),
            "throttled_s": self._throttling.read(),
            "preempted": self._preempted(),
        }

    def _read_cores(self) -> tuple[Spent, ...]:
        """The shares of each core since the reading before; () where too little time has passed to tell."""
        now = [_spent(times) for times in self._cpu_times()]
        if len(now) != len(self._before):  # the first reading, or a core was switched on or off
            self._before = now
            return ()
        passed = [Spent(*(a - b for a, b in zip(*pair, strict=True))) for pair in zip(now, self._before, strict=True)]
        if min((core.every for core in passed), default=0.0) < _LEAST_TICKS_S:
            return ()
        self._before = now
        return tuple(Spent(_share(core.busy, core.every), _share(core.waiting, core.every), 1.0) for core in passed)

    def _read_bytes(self) -> float:
        if "read_bytes" in self._unreadable:
            return math.nan
        if not hasattr(self._process, "io_counters"):
            return self._cannot("read_bytes", "bytes read from storage", f"{sys.platform} does not tell psutil")
        try:
            return float(self._process.io_counters().read_bytes)
        except (psutil.AccessDenied, NotImplementedError, OSError):
            return self._cannot("read_bytes", "bytes read from storage", "the system keeps /proc/self/io from us")

    def _preempted(self) -> float:
        """Of all threads: what /proc/self/status tells is of the main one only."""
        if _usage is None:
            return self._cannot("preempted", "how often threads were taken off their cores", f"{sys.platform} hides it")
        return float(_usage().ru_nivcsw)

    def _cannot(self, column: str, what: str, why: str) -> float:
        self._unreadable[column] = Gap(what=what, why=why, fix="run on Linux as the user who owns the processes")
        return math.nan


def _spent(times: Any) -> Spent:
    """CPU seconds of work and of everything. Guests are counted in `user` already; waiting for storage is no work."""
    told: Mapping[str, float] = times._asdict()
    every = sum(told.values()) - told.get("guest", 0.0) - told.get("guest_nice", 0.0)
    busy = every - told.get("idle", 0.0) - told.get("iowait", 0.0)
    return Spent(busy, told.get("iowait", math.nan), every)


def _share(part: float, every: float) -> float:
    """Counters of a virtual machine can run backwards by a tick."""
    return part if math.isnan(part) else min(1.0, max(0.0, part / every))


def _mean(values: Iterable[float]) -> float:
    told = tuple(values)
    return sum(told) / len(told) if told else math.nan
