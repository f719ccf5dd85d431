"""The DataLoader's worker processes, each looked at by itself: CPU time, waits for storage, bytes read, threads."""

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

# Looking at one costs 0.1 ms of the GIL; of a hundred workers each is looked at every second then.
_MOST_AT_ONCE = 12
_TELLS_BLOCKED = sys.platform == "linux"  # no other system tells a wait for storage from a sleep


class Workers:
    """Looks at the workers there are; keeps a row of WORKER_SAMPLES for each look."""

    def __init__(self) -> None:
        self.gaps: tuple[Gap, ...] = ()
        self._alive: dict[int, psutil.Process] = {}
        self._numbers: dict[int, int] = {}  # in the order in which they were first seen
        self._cpu_s: dict[int, float] = {}
        self._blocked: dict[int, bool] = {}
        self._turn = 0
        self._samples = Samples(WORKER_SAMPLES)

    def watch(self, pids: Iterable[int]) -> None:
        """The worker processes there are now; those that were known before and are gone keep their CPU time."""
        wanted = dict.fromkeys(pids)
        for pid in wanted:
            if pid not in self._alive:
                try:
                    self._alive[pid] = psutil.Process(pid)
                except psutil.Error:  # ended before it was first looked at: it is not alive, and that is all we know
                    continue
                self._numbers.setdefault(pid, len(self._numbers))
        for pid in self._alive.keys() - wanted.keys():
            del self._alive[pid]

    def read(self, at_ns: int) -> dict[str, float]:
        """`workers`, `worker_cpu_s` and `workers_blocked` of HOST_SAMPLES, and a row for each worker looked at."""
        looked = self._next_in_turn()
        alive = [pid for pid in self._alive if self._look(pid, at_ns, closely=pid in looked)]
        return {
            "workers": float(len(alive)),
            "worker_cpu_s": sum(self._cpu_s.values()),
            "workers_blocked": float(sum(self._blocked.get(pid, False) for pid in alive))
            if _TELLS_BLOCKED
            else math.nan,
        }

    def rows(self, began_ns: int) -> Rows:
        """WORKER_SAMPLES on the clock of a run that began at this UNIX time."""
        return WORKER_SAMPLES.rows(self._samples.columns(began_ns))

    def _next_in_turn(self) -> set[int]:
        pids = list(self._alive)
        if len(pids) <= _MOST_AT_ONCE:
            return set(pids)
        first, self._turn = self._turn % len(pids), self._turn + _MOST_AT_ONCE
        return set(itertools.islice(itertools.cycle(pids), first, first + _MOST_AT_ONCE))

    def _look(self, pid: int, at_ns: int, *, closely: bool) -> bool:
        """Look at one worker; whether it is alive."""
        cpu_s = process_cpu_s(pid)
        if not closely:
            self._cpu_s[pid] = cpu_s if not math.isnan(cpu_s) else self._cpu_s.get(pid, cpu_s)
            return not math.isnan(cpu_s)
        worker = self._alive[pid]
        try:
            with worker.oneshot():
                status, threads = worker.status(), float(worker.num_threads())
                times = worker.cpu_times()
        except psutil.AccessDenied:
            self._cpu_s[pid] = self._hidden()
            return True
        except psutil.NoSuchProcess:  # ended since the last reading; ZombieProcess is one of these
            return False
        if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return False
        # The process's own clock where there is one: psutil's counts in ticks of 10 ms.
        self._cpu_s[pid] = times.user + times.system if math.isnan(cpu_s) else cpu_s
        self._blocked[pid] = status == psutil.STATUS_DISK_SLEEP
        self._samples.append(
            {
                "at_ns": at_ns,
                "worker": self._numbers[pid],
                "cpu_s": self._cpu_s[pid],
                "blocked": float(self._blocked[pid]) if _TELLS_BLOCKED else math.nan,
                "read_bytes": _read_bytes(worker),
                "threads": threads,
            }
        )
        return True

    def _hidden(self) -> float:
        fix = "run on Linux as the user who owns the processes"
        self.gaps = (Gap(what="CPU time of the workers", why="they belong to another user", fix=fix),)
        return math.nan


def _read_bytes(worker: psutil.Process) -> float:
    """NaN where the system does not count or hides it: the main process's own has told why."""
    try:
        return float(worker.io_counters().read_bytes)
    except (AttributeError, NotImplementedError, OSError, psutil.Error):
        return math.nan
