"""Time that a thread is ready to run and waits for a core.

Other programs cause these waits, so they do not count as cost of the measured program. They come from Linux's
scheduler statistics; on other systems they stay part of the time. On a virtual GPU, CPU contention is modelled instead.
"""

from __future__ import annotations

import os
import time

from gpulab.capture.protection.guard import is_from_outside

STALE_NS = 1_000_000  # greatest age of a reading; reading takes 5 us
LONG_NS = 100_000  # shorter intervals are not corrected: the scheduler preempts for longer


class CoreWaits:
    """The waits of the thread that creates this object."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            if is_from_outside(error):
                raise
            self._file = -1
        self._waited_ns, self._read_ns = self.waited_ns(), time.perf_counter_ns()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def waited_ns(self) -> int:
        """Total wait since the thread started; always 0 if the system does not report it."""
        if self._file < 0:
            return 0
        try:
            fields = os.pread(self._file, 96, 0).split()
        except OSError as error:  # the thread has ended; or a handler of the program's, as TimeoutError is an OSError
            if is_from_outside(error):
                raise
            return 0
        return int(fields[1]) if len(fields) > 1 else 0

    def begin(self) -> int:
        """Begin an interval and return its start time; `without` gives its length without waits."""
        now_ns = time.perf_counter_ns()
        if now_ns - self._read_ns <= STALE_NS:
            return now_ns
        self._waited_ns = self.waited_ns()
        self._read_ns = time.perf_counter_ns()
        return self._read_ns

    def end(self, took_ns: int) -> int:
        """Return the length of an interval that ends now, minus the waits in it."""
        if took_ns < LONG_NS:
            return took_ns
        before_ns, self._waited_ns = self._waited_ns, self.waited_ns()
        self._read_ns = time.perf_counter_ns()
        return max(0, took_ns - max(0, self._waited_ns - before_ns))
