"""Current state of the DataLoader workers: the load of each, and whether it waits for storage."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from gpulab.capture.live.snapshot import WorkerState
from gpulab.sensors.host import cpu_clocks

WORKER_STATE_INTERVAL_NS = 180_000_000  # over a shorter time the load is noise, and a look at a worker costs 20 us
_HAS_DISK_STATE = sys.platform == "linux"  # no other system distinguishes waiting for storage from sleeping
_ENDED = ("Z", "X")  # it has ended, and its parent has not collected it yet


class WorkerStates:
    """Reads the state of each worker process; the first reading of a worker has no load, which needs two readings."""

    def __init__(self) -> None:
        self._latest: tuple[WorkerState, ...] = ()
        self._last_look_ns = 0
        self._used_s: dict[int, float] = {}

    def read(self, now_ns: int, pids: Sequence[int]) -> tuple[WorkerState, ...]:
        """State of each running worker, in the DataLoader's order."""
        passed_s = (now_ns - self._last_look_ns) / 1e9
        if now_ns - self._last_look_ns < WORKER_STATE_INTERVAL_NS:
            return self._latest
        now = {pid: (cpu_s, _state(pid)) for pid in pids if not math.isnan(cpu_s := _cpu_s(pid))}
        alive = {pid: reading for pid, reading in now.items() if reading[1] not in _ENDED}
        self._latest = tuple(
            WorkerState(load_frac=self._load(pid, cpu_s, passed_s), blocked=state == "D" if state else None)
            for pid, (cpu_s, state) in alive.items()
        )
        self._last_look_ns, self._used_s = now_ns, {pid: cpu_s for pid, (cpu_s, _) in alive.items()}
        return self._latest

    def _load(self, pid: int, cpu_s: float, passed_s: float) -> float | None:
        before_s = self._used_s.get(pid)
        return None if before_s is None or passed_s <= 0 else min(max((cpu_s - before_s) / passed_s, 0.0), 1.0)


def _cpu_s(pid: int) -> float:
    if cpu_clocks.AVAILABLE:
        return cpu_clocks.process_cpu_s(pid)
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return math.nan
    return float(times.user + times.system)


def _state(pid: int) -> str | None:
    """The letter of its state in /proc, the first field after its name, which may itself contain brackets."""
    if not _HAS_DISK_STATE:
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
