"""How long a thread was ready to run and waited for a core: who else wants the cores is no cost of the program.

On a virtual machine that is modelled, not measured. Linux tells these waits; elsewhere they are part of the time.
"""

from __future__ import annotations

import os
import time

STALE_NS = 1_000_000  # a reading may be that old; one takes 5 us
LONG_NS = 100_000  # shorter stretches are taken as they are: nobody is put off the core for less


class CoreWaits:
    """The waits of the thread that makes it."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            self._file = -1
        self._waited_ns, self._read_ns = self.waited_ns(), time.perf_counter_ns()

    def close(self) -> None:
        """Give the file back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def waited_ns(self) -> int:
        """In all, since the thread began; always 0 where that is not told."""
        if self._file < 0:
            return 0
        try:
            told = os.pread(self._file, 96, 0).split()
        except OSError:  # the thread it was opened for is gone
            return 0
        return int(told[1]) if len(told) > 1 else 0

    def begin(self) -> int:
        """The time at which a stretch begins that `without` will be asked about."""
        now_ns = time.perf_counter_ns()
        if now_ns - self._read_ns <= STALE_NS:
            return now_ns
        self._waited_ns = self.waited_ns()
        self._read_ns = time.perf_counter_ns()
        return self._read_ns

    def without(self, took_ns: int) -> int:
        """What a stretch that ends now took, less the waits in it."""
        if took_ns < LONG_NS:
            return took_ns
        before_ns, self._waited_ns = self._waited_ns, self.waited_ns()
        self._read_ns = time.perf_counter_ns()
        return max(0, took_ns - max(0, self._waited_ns - before_ns))
