"""How many events the profiler holds, while it records: an estimate from the memory in use, which costs microseconds.

PyTorch tells the number of events only after the profiler has stopped, and stopping takes several microseconds per
event during which the user's loop waits. glibc's `mallinfo2` tells the bytes that the heap holds in small blocks; per
event they grow by 215 to 261 bytes (torch 2.13, levels "trace" and "deep"). What the program itself allocates there
counts too, so the estimate is rather too high. Tensors do not: blocks of 128 KiB and more lie outside the heap.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from functools import cache

BYTES_PER_EVENT = 230
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
CHECK_S = 0.02  # a fast loop records ten thousand events in this time


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


class EventCount:
    """Estimates the events recorded since it was created."""

    def __init__(self) -> None:
        self._before = heap_bytes()

    def read(self) -> int | None:
        """The estimate now; None if this C library does not tell."""
        now = heap_bytes()
        return None if now is None or self._before is None else max(0, now - self._before) // BYTES_PER_EVENT


class EventLimit:
    """Calls `exceeded` in a thread of its own as soon as the profiler holds more than `limit` events."""

    def __init__(self, limit: int, exceeded: Callable[[], None]) -> None:
        self.count = EventCount()
        self._limit, self._exceeded = limit, exceeded
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpulab-event-limit", daemon=True)

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

    def _watch(self) -> None:
        previous = 0
        while not self._ended.wait(CHECK_S):
            events = self.count.read() or 0
            # Stop before the limit if the next check would come too late.
            if events + (events - previous) > self._limit:
                self._exceeded()
                return
            previous = events
