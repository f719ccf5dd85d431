"""CPU time of single threads and processes, to the nanosecond where the system has a clock for each.

Linux numbers these clocks after the thread or process (`include/linux/posix-timers.h`, which the C library builds on).
Asking one costs about 5 us and opens no file; one that has ended is answered with an error, never with another's time.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

_PROCESS, _THREAD = 2, 6  # CPUCLOCK_SCHED, without and with CPUCLOCK_PERTHREAD_MASK

TELLS = sys.platform == "linux"


def thread_cpu_s(native_id: int | None) -> float:
    """CPU time that a thread of this process used so far; NaN where the system does not tell, or it has ended."""
    return _read(native_id, _THREAD)


def thread_delayed_s(native_id: int | None) -> float:
    """How long a thread of this process was ready to run and had no core; NaN where the system does not tell.

    The second number of schedstat, in ns (Documentation/scheduler/sched-stats.rst); some kernels are built without.
    """
    try:
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return math.nan


def process_cpu_s(pid: int) -> float:
    """CPU time that a process used so far, all its threads; NaN where the system does not tell, or it has ended."""
    return _read(pid, _PROCESS)


def _read(number: int | None, kind: int) -> float:
    if not TELLS or not number:
        return math.nan
    try:
        return time.clock_gettime_ns((~number << 3) | kind) / 1e9
    except OSError:  # it has ended
        return math.nan
