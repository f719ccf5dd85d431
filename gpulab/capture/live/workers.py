"""The DataLoader's workers at one moment: how much of a core each uses, and whether it waits for storage."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from gpulab.capture.live.snapshot import WorkerNow
from gpulab.sensors.host import cpu_clocks

EVERY_NS = 180_000_000  # a share of less time than this jumps about, and a look at a worker costs 20 us
_TELLS_BLOCKED = sys.platform == "linux"  # no other system tells a wait for storage from a sleep
_OVER = ("Z", "X")  # it has ended, and its parent has not taken note of it yet


class WorkersNow:
    """Looks at each worker process; the first look at one tells no load, as a share needs a time to be of."""

    def __init__(self) -> None:
        self._latest: tuple[WorkerNow, ...] = ()
        self._looked_ns = 0
        self._used_s: dict[int, float] = {}

    def look(self, now_ns: int, pids: Sequence[int]) -> tuple[WorkerNow, ...]:
        """Each worker that is alive, in the DataLoader's order."""
        passed_s = (now_ns - self._looked_ns) / 1e9
        if now_ns - self._looked_ns < EVERY_NS:
            return self._latest
        now = {pid: (cpu_s, _state(pid)) for pid in pids if not math.isnan(cpu_s := _cpu_s(pid))}
        alive = {pid: told for pid, told in now.items() if told[1] not in _OVER}
        self._latest = tuple(
            WorkerNow(load_frac=self._load(pid, cpu_s, passed_s), blocked=state == "D" if state else None)
            for pid, (cpu_s, state) in alive.items()
        )
        self._looked_ns, self._used_s = now_ns, {pid: cpu_s for pid, (cpu_s, _) in alive.items()}
        return self._latest

    def _load(self, pid: int, cpu_s: float, passed_s: float) -> float | None:
        before_s = self._used_s.get(pid)
        return None if before_s is None or passed_s <= 0 else min(max((cpu_s - before_s) / passed_s, 0.0), 1.0)


def _cpu_s(pid: int) -> float:
    if cpu_clocks.TELLS:
        return cpu_clocks.process_cpu_s(pid)
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return math.nan
    return float(times.user + times.system)


def _state(pid: int) -> str | None:
    """The letter of its state, the first thing after its name, which may itself contain brackets."""
    if not _TELLS_BLOCKED:
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
