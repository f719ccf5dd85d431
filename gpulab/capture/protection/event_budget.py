"""How many events the profiler holds, while it records: an estimate from the memory in use, which costs microseconds.

PyTorch tells the number of events only after the profiler has stopped, and stopping takes several microseconds per
event during which the user's loop waits. glibc's `mallinfo2` tells the bytes that the heap holds in small blocks; per
event they grow by 215 to 261 bytes (torch 2.13, levels "trace" and "deep"). What the program itself allocates there
counts too, so the estimate is rather too high.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache

BYTES_PER_EVENT = 230
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
CHECK_S = 0.02  # a fast loop records ten thousand events in this time
MIN_STEP_S = 0.05  # in less, no step records as many events as a window may hold


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc; `uordblks` is the number of bytes in use in the heap."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


@cache
def _mallinfo2() -> Callable[[], _Mallinfo2] | None:
    """Glibc's function, from version 2.33 on; None elsewhere."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library; Windows has no handle None
        return None
    function.restype = _Mallinfo2
    return function


def heap_bytes() -> int | None:
    """Bytes in use in the heap's small blocks; None if this C library does not tell."""
    function = _mallinfo2()
    return None if function is None else int(function().uordblks)


def return_freed_memory() -> None:
    """Return the heap's free pages to the system, as glibc does by itself only at the end of the heap."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library; Windows has no handle None
        ctypes.CDLL(None).malloc_trim(0)


class EventWatch:
    """Counts events while the profiler records, in a thread of its own; calls `exceeded` if there are too many.

    Tensors of a step may lie in the heap, too: glibc moves them there once some were freed. At a step boundary they are
    gone; within a step, the most that the heap held in steps without the profiler is subtracted.
    """

    def __init__(self, exceeded: Callable[[], None]) -> None:
        self._exceeded = exceeded
        self._limit: int | None = None  # None: not to be watched
        self._is_plain = False  # the profiler is off, and a step has begun since
        self._window_bytes = self._step_bytes = 0  # heap at the start of the window and of the step
        self._step_s = 0.0
        self._tensor_bytes = 0  # beyond the heap at the start of its step, in a step without the profiler
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpulab-event-watch", daemon=True)

    def start(self) -> None:
        """Start to watch; does nothing where events cannot be counted, or no thread can start."""
        if heap_bytes() is not None:
            with contextlib.suppress(RuntimeError):
                self._thread.start()

    def stop(self) -> None:
        """Stop watching; the thread has ended when this returns."""
        self._ended.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def profiler_started(self, limit: int) -> None:
        """The profiler records from now on."""
        self._is_plain = False
        self._window_bytes = heap_bytes() or 0
        self._limit = limit
        self.step_started()

    def profiler_stopped(self) -> None:
        """The profiler is off; the memory of its events does not count as the program's."""
        self._limit = None
        self.step_started()
        self._is_plain = True

    def step_started(self) -> int | None:
        """A step starts now; return the number of events that the profiler holds, None if it is off or unknown."""
        now = heap_bytes()
        if now is None:
            return None
        self._step_bytes, self._step_s = now, time.monotonic()
        return None if self._limit is None else max(0, now - self._window_bytes) // BYTES_PER_EVENT

    def _watch(self) -> None:
        previous = 0
        while not self._ended.wait(CHECK_S):
            now, limit = heap_bytes() or 0, self._limit
            if limit is None:
                if self._is_plain:
                    self._tensor_bytes = max(self._tensor_bytes, now - self._step_bytes)
                previous = 0
                continue
            events = max(0, now - self._window_bytes - self._tensor_bytes) // BYTES_PER_EVENT
            # Stop before the limit if the next check would come too late. Short steps are stopped at their boundary.
            if events + max(0, events - previous) > limit and time.monotonic() - self._step_s >= MIN_STEP_S:
                self._limit = None
                self._exceeded()
            previous = events
