"""What the host can be asked, through psutil: CPU, memory, reads from storage, the DataLoader's workers."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil

from gpulab.run import Gap

_LEAST_TICKS_S = 0.03  # the kernel counts CPU time in ticks of 10 ms: over less than a few, a share is a lottery


class Host:
    """Reads the float columns of HOST_SAMPLES. The first reading has no load: a share needs a time to be of."""

    def __init__(self, cpu_times: Callable[[], Sequence[Any]] | None = None) -> None:
        self._cpu_times = cpu_times or (lambda: psutil.cpu_times(percpu=True))
        self._process = psutil.Process()
        self._before: list[tuple[float, float]] = []
        self._workers: dict[int, psutil.Process] = {}
        self._worker_cpu_s: dict[int, float] = {}
        self._unreadable: dict[str, Gap] = {}
        self.core_fracs: tuple[float, ...] = ()  # the latest load of each core

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be read, and why."""
        return tuple(self._unreadable.values())

    def set_workers(self, pids: Iterable[int]) -> None:
        """The worker processes there are now; those that were known before and are gone keep their CPU time."""
        wanted = set(pids)
        for pid in wanted - self._workers.keys():
            try:
                self._workers[pid] = psutil.Process(pid)
            except psutil.Error:  # ended before it was first looked at: it is not alive, and that is all we know
                continue
        for pid in self._workers.keys() - wanted:
            del self._workers[pid]

    def read(self) -> dict[str, float]:
        """Every float column of HOST_SAMPLES; NaN where the system does not tell."""
        cores = self._read_cores()
        self.core_fracs = cores or self.core_fracs
        return {
            "cpu_frac": sum(cores) / len(cores) if cores else math.nan,
            "process_cpu_s": time.process_time(),
            "rss_bytes": float(self._process.memory_info().rss),
            "memory_available_bytes": float(psutil.virtual_memory().available),
            "read_bytes": self._read_bytes(),
            **self._read_workers(),
        }

    def _read_cores(self) -> tuple[float, ...]:
        """The load of each core since the reading before; () where too little time has passed to tell."""
        now = [_busy_and_all(times) for times in self._cpu_times()]
        if len(now) != len(self._before):  # the first reading, or a core was switched on or off
            self._before = now
            return ()
        passed = [(busy - busy0, every - all0) for (busy, every), (busy0, all0) in zip(now, self._before, strict=True)]
        if min((every for _, every in passed), default=0.0) < _LEAST_TICKS_S:
            return ()
        self._before = now
        # Counters of a virtual machine can run backwards by a tick.
        return tuple(min(1.0, max(0.0, busy / every)) for busy, every in passed)

    def _read_bytes(self) -> float:
        if "read_bytes" in self._unreadable:
            return math.nan
        if not hasattr(self._process, "io_counters"):
            return self._cannot("read_bytes", "bytes read from storage", f"{sys.platform} does not tell psutil")
        try:
            return float(self._process.io_counters().read_bytes)
        except (psutil.AccessDenied, NotImplementedError, OSError):
            return self._cannot("read_bytes", "bytes read from storage", "the system keeps /proc/self/io from us")

    def _read_workers(self) -> dict[str, float]:
        alive, blocked = 0, 0
        for pid, worker in self._workers.items():
            try:
                with worker.oneshot():
                    times, status = worker.cpu_times(), worker.status()
            except psutil.AccessDenied:
                alive += 1
                self._worker_cpu_s[pid] = self._cannot(
                    "workers", "CPU time of the workers", "they belong to another user"
                )
                continue
            except psutil.NoSuchProcess:  # ended since the last reading; ZombieProcess is one of these
                continue
            self._worker_cpu_s[pid] = times.user + times.system
            alive += status not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            blocked += status == psutil.STATUS_DISK_SLEEP
        tells_blocked = sys.platform == "linux"  # no other system tells a wait for storage from a sleep
        return {
            "workers": float(alive),
            "worker_cpu_s": sum(self._worker_cpu_s.values()),
            "workers_blocked": float(blocked) if tells_blocked else math.nan,
        }

    def _cannot(self, column: str, what: str, why: str) -> float:
        self._unreadable[column] = Gap(what=what, why=why, fix="run on Linux as the user who owns the processes")
        return math.nan


def _busy_and_all(times: Any) -> tuple[float, float]:
    """CPU seconds of work and of everything. Guests are counted in `user` already; waiting for storage is no work."""
    told: Mapping[str, float] = times._asdict()
    every = sum(told.values()) - told.get("guest", 0.0) - told.get("guest_nice", 0.0)
    return every - told.get("idle", 0.0) - told.get("iowait", 0.0), every
