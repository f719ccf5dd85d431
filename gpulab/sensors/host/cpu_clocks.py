"""CPU time of single threads and processes in ns, on systems with a clock for each.

Linux derives the clock ids from thread and process ids (`include/linux/posix-timers.h`, used by the C library).
Reading one costs about 5 us and opens no file. It fails for an ended thread or process; it never returns another's.
"""

from __future__ import annotations

import math
import sys
import time

_PROCESS, _THREAD = 2, 6  # CPUCLOCK_SCHED, without and with CPUCLOCK_PERTHREAD_MASK

AVAILABLE = sys.platform == "linux"


def thread_cpu_s(native_id: int | None) -> float:
    """CPU time used so far by a thread of this process; NaN if unknown or if it has ended."""
    return _read(native_id, _THREAD)


def process_cpu_s(pid: int) -> float:
    """CPU time used so far by all threads of a process; NaN if unknown or if it has ended."""
    return _read(pid, _PROCESS)


def _read(number: int | None, kind: int) -> float:
    if not AVAILABLE or not number:
        return math.nan
    try:
        return time.clock_gettime_ns((~number << 3) | kind) / 1e9
    except OSError:  # it has ended
        return math.nan
