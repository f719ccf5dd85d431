"""DataLoader worker processes, each read separately: CPU time, waits for storage, bytes read, threads."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable

import psutil

from gpulab.rows import Rows
from gpulab.run import Gap
from gpulab.sensors.host.cpu_clocks import process_cpu_s
from gpulab.sensors.samples import Samples
from gpulab.tables import WORKER_SAMPLES

# A reading costs 0.1 ms with the GIL held; with a hundred workers, each is read about once a second.
_MAX_PER_READING = 12
_HAS_DISK_STATE = sys.platform == "linux"  # no other system distinguishes waiting for storage from sleeping


class WorkerReader:
    """Reads the current workers; keeps a row of WORKER_SAMPLES for each reading."""

    def __init__(self) -> None:
        self.gaps: tuple[Gap, ...] = ()
        self._alive: dict[int, psutil.Process] = {}
        self._numbers: dict[int, int] = {}  # in the order of first appearance
        self._cpu_s: dict[int, float] = {}
        self._blocked: dict[int, bool] = {}
        self._turn = 0
        self._samples = Samples(WORKER_SAMPLES)

    def set_pids(self, pids: Iterable[int]) -> None:
        """Set the current worker processes; the CPU time of ended ones remains counted."""
        current = dict.fromkeys(pids)
        for pid in current:
            if pid not in self._alive:
                try:
                    self._alive[pid] = psutil.Process(pid)
                except psutil.Error:  # it ended before its first reading
                    continue
                self._numbers.setdefault(pid, len(self._numbers))
        for pid in self._alive.keys() - current.keys():
            del self._alive[pid]

    def read(self, at_ns: int) -> dict[str, float]:
        """`workers`, `worker_cpu_s` and `workers_blocked` of HOST_SAMPLES; adds a row per worker that is read fully."""
        selected = self._next_in_turn()
        alive = [pid for pid in self._alive if self._read_worker(pid, at_ns, fully=pid in selected)]
        return {
            "workers": float(len(alive)),
            "worker_cpu_s": sum(self._cpu_s.values()),
            "workers_blocked": float(sum(self._blocked.get(pid, False) for pid in alive))
            if _HAS_DISK_STATE
            else math.nan,
        }

    @property
    def count(self) -> int:
        """Number of rows so far."""
        return len(self._samples)

    def rows(self, began_ns: int, first: int = 0) -> Rows:
        """WORKER_SAMPLES, from row `first`, on the clock of a run that began at this UNIX time."""
        return WORKER_SAMPLES.rows(self._samples.columns(began_ns, first))

    def _next_in_turn(self) -> set[int]:
        pids = list(self._alive)
        if len(pids) <= _MAX_PER_READING:
            return set(pids)
        first, self._turn = self._turn % len(pids), self._turn + _MAX_PER_READING
        return set(itertools.islice(itertools.cycle(pids), first, first + _MAX_PER_READING))

    def _read_worker(self, pid: int, at_ns: int, *, fully: bool) -> bool:
        """Read one worker; False if it has ended."""
        cpu_s = process_cpu_s(pid)
        if not fully:
            self._cpu_s[pid] = cpu_s if not math.isnan(cpu_s) else self._cpu_s.get(pid, cpu_s)
            return not math.isnan(cpu_s)
        worker = self._alive[pid]
        try:
            with worker.oneshot():
                status, threads = worker.status(), float(worker.num_threads())
                times = worker.cpu_times()
        except psutil.AccessDenied:
            self._cpu_s[pid] = self._note_hidden()
            return True
        except psutil.NoSuchProcess:  # ended since the previous reading; includes ZombieProcess
            return False
        if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        # The process's own clock if there is one: psutil counts in ticks of 10 ms.
        self._cpu_s[pid] = times.user + times.system if math.isnan(cpu_s) else cpu_s
        self._blocked[pid] = status == psutil.STATUS_DISK_SLEEP
        self._samples.append(
            {
                "at_ns": at_ns,
                "worker": self._numbers[pid],
                "cpu_s": self._cpu_s[pid],
                "blocked": float(self._blocked[pid]) if _HAS_DISK_STATE else math.nan,
                "read_bytes": _read_bytes(worker),
                "threads": threads,
            }
        )
        return True

    def _note_hidden(self) -> float:
        fix = "run on Linux as the user who owns the processes"
        self.gaps = (Gap(what="CPU time of the workers", why="they belong to another user", fix=fix),)
        return math.nan


def _read_bytes(worker: psutil.Process) -> float:
    """Bytes read; NaN if unavailable, for which the main process's sensor reports the reason."""
    try:
        return float(worker.io_counters().read_bytes)
    except (AttributeError, NotImplementedError, OSError, psutil.Error):
        return math.nan
