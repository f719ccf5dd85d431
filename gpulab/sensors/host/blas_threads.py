"""Threads of NumPy's BLAS that compete with PyTorch for the cores: which threads these are, and what they used.

After a product of matrices, the threads of OpenBLAS wait for the next one in a busy loop, for about 0.1 s. If PyTorch
computes meanwhile on as many threads as there are cores, its threads are one too many.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns, sleep  # bound here: the program may replace the functions of the module
from typing import Any

from gpulab.run_facts import BLAS_CORES, BLAS_SPIN_TIME, BLAS_THREADS
from gpulab.sensors.host.proc_files import PROC, ProcFile

_MIN_BUSY_FRAC = 0.1  # of the CPU time of the busiest thread: a thread that used less does not matter
_SIZE, _PRODUCTS = 256, 4  # BLAS computes products of such matrices on all its threads
_MIN_SPIN_NS = 10_000_000  # of CPU time after the products: the threads of PyTorch stop sooner
_QUIET_NS = 500_000  # of CPU time in 10 ms: less is idle
_STEP_S, _MAX_WAITS, _SPIN_S = 0.01, 30, 0.2
_PERIOD_NS, _MOST_OF_TIME = 500_000_000, 200  # between readings; a reading takes at most a 200th of the time

ThreadTimes = dict[int, int]  # CPU time by thread id, in ns


class BlasThreads:
    """Counts the CPU time of every thread of this process, of Python or not, from the first step to the last.

    What a program computes before and after its loop does not count.
    """

    def __init__(self) -> None:
        self._first: ThreadTimes = {}
        self._last: ThreadTimes = {}
        self._first_ns = self._last_ns = self._next_ns = 0

    def boundary(self) -> None:
        """A step begins: read the times, if the previous reading is long ago."""
        now_ns = perf_counter_ns()
        if now_ns < self._next_ns:
            return
        self._last, self._last_ns = thread_times_ns(), now_ns
        if not self._first_ns:
            self._first, self._first_ns = self._last, now_ns
        self._next_ns = now_ns + max(_PERIOD_NS, _MOST_OF_TIME * (perf_counter_ns() - now_ns))

    def facts(self) -> dict[str, str]:
        """Return the number of BLAS threads, the cores they used and how long they spin, as facts; {} if none was busy.

        They are found by a few products of matrices, and only in a process with more busy threads than PyTorch has.
        """
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        used_ns = {each: ns - self._first.get(each, 0) for each, ns in self._last.items()}
        python = {thread.native_id for thread in threading.enumerate()}
        least_ns = _MIN_BUSY_FRAC * max(used_ns.values(), default=0)
        busy = [each for each, ns in used_ns.items() if ns > least_ns and each not in python]
        if torch is None or numpy is None or len(busy) < torch.get_num_threads():
            return {}
        spins_ns = _spins_after_products_ns(torch, numpy, busy)
        if not spins_ns:
            return {}
        span_ns = self._last_ns - self._first_ns
        return {
            BLAS_THREADS: str(len(spins_ns)),
            BLAS_CORES: f"{sum(used_ns[each] for each in spins_ns) / span_ns:.4f}",
            BLAS_SPIN_TIME: str(max(spins_ns.values())),
        }


def thread_times_ns() -> ThreadTimes:
    """Return the CPU time of every thread of this process; {} where the system does not tell it."""
    try:
        names = [path.name for path in (PROC / "self/task").iterdir()]
    except OSError:
        return {}
    return {int(name): time_ns for name in names if (time_ns := _thread_time_ns(int(name))) is not None}


def _thread_time_ns(thread: int) -> int | None:
    """Return the first number of the thread's schedstat file; None if it ended, or if the kernel has no such file."""
    file = ProcFile(PROC / f"self/task/{thread}/schedstat")
    try:
        return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    finally:
        file.close()


def _spins_after_products_ns(torch: Any, numpy: Any, busy: list[int]) -> ThreadTimes:
    """Return which of these threads go on after products of NumPy, but not after operators of PyTorch, and how long."""
    tensor = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device="cpu")
    matrix = numpy.ones((_SIZE, _SIZE), numpy.float32)
    of_torch = _spins_ns(busy, lambda: tensor.mul(2.0))
    of_numpy = _spins_ns(busy, lambda: numpy.matmul(matrix, matrix))
    return {each: ns for each, ns in of_numpy.items() if ns >= _MIN_SPIN_NS and of_torch.get(each, ns) < ns // 2}


def _spins_ns(threads: list[int], compute: Callable[[], object]) -> ThreadTimes:
    """Return the CPU time that each of these threads uses after this was computed; {} if they are never idle."""
    if not _is_quiet(threads):
        return {}
    for _ in range(_PRODUCTS):
        compute()
    before = thread_times_ns()
    sleep(_SPIN_S)
    after = thread_times_ns()
    return {each: after.get(each, 0) - before.get(each, 0) for each in threads}


def _is_quiet(threads: list[int]) -> bool:
    """Wait until none of the threads computes or spins; False if they go on."""
    before = thread_times_ns()
    for _ in range(_MAX_WAITS):
        sleep(_STEP_S)
        after = thread_times_ns()
        if all(after.get(each, 0) - before.get(each, 0) < _QUIET_NS for each in threads):
            return True
        before = after
    return False
