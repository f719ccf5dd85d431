"""How many events the profiler holds, while it records: an estimate from the memory in use.

PyTorch tells the number of events only after the profiler has stopped, and stopping takes several microseconds per
event during which the user's loop waits. glibc's `mallinfo2` tells the bytes that the heap holds in small blocks; per
event they grow by 215 to 261 bytes (torch 2.13, levels "trace" and "deep"). What the program itself allocates there
counts too, so the estimate is rather too high.

The call takes microseconds in a small heap, but milliseconds in one with many free blocks, and nothing in the process
can allocate meanwhile. So it is made only as long as a window may still be recorded, and seldom if it is slow.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Callable
from functools import cache

from gpulab.sensors.background_thread import BackgroundThread

BYTES_PER_EVENT = 230
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
PLAIN_CHECK_S = 0.02
RECORDED_CHECK_S = 0.01  # a fast loop records six thousand events in this time
# A reading is used for this many times the time that it took: at most 2 % of a plain step, whose duration is measured,
# and 20 % of a recorded one are spent on readings.
PLAIN_READ_TIMES, RECORDED_READ_TIMES = 50, 5
SLOW_READ_S = 0.002
MIN_STEP_S = 0.02  # a shorter step is not cut: its boundary follows soon
MAX_RATE_FACTOR = 4.0  # events may come this many times faster within a step than on average


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

    Tensors may lie in the heap, too: glibc moves them there once some were freed. Those that live at a step boundary,
    such as gradients, live at the others, too, so boundaries are compared with each other. Within a step, the most
    that the heap held beyond its boundary in steps without the profiler is subtracted.
    """

    def __init__(self, exceeded: Callable[[], None]) -> None:
        self._exceeded = exceeded
        self._is_counted = heap_bytes() is not None
        self._limit: int | None = None  # None: not to be watched
        self._is_plain = False  # the profiler is off, and a step has begun since
        self._window_bytes = self._most_bytes = 0  # least and largest heap in the window
        self._boundary_bytes = 0  # least heap at a step boundary of the window
        self._step_bytes = 0  # heap at the start of the step
        self._step_s = self._window_s = 0.0
        self._events_per_s: float | None = None  # of the steps in the window; None before its first boundary
        self._min_step_s = MIN_STEP_S
        self._tensor_bytes = 0  # of the program, beyond the heap at the start of a step or window
        self._reading = 0  # the latest number of bytes in the heap
        self._read_s = self._cost_s = 0.0  # when that was read, and how long it took
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = BackgroundThread(target=self._watch, name="gpulab-event-watch")

    def start(self) -> None:
        """Start to watch; does nothing where events cannot be counted, or no thread can start."""
        if self._is_counted:
            with contextlib.suppress(RuntimeError):
                self._thread.start()

    def stop(self) -> None:
        """Stop watching; the thread has ended when this returns."""
        self._end()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.wait()

    def _end(self) -> None:
        self._ended.set()
        self._wake.set()

    def profiler_started(self, limit: int, *, in_loop: bool = True) -> None:
        """The profiler records from now on; `in_loop`: a step of a loop starts now."""
        self._is_plain = False
        self._min_step_s = MIN_STEP_S if in_loop else 0.0
        if self._cost_s > SLOW_READ_S:
            return_freed_memory()  # joins free blocks, so that there are few to count
        self._read_s = 0.0  # an old reading is no start for a count
        self._window_bytes = self._most_bytes = self._boundary_bytes = self._heap_bytes()
        self._window_s, self._events_per_s = time.monotonic(), None
        self._limit = limit  # last: from now on, a smaller heap means that the program has freed memory
        self.step_started()
        self._wake.set()

    def profiler_stops(self) -> None:
        """The profiler is about to stop: what it allocates meanwhile are no events."""
        self._limit = None

    def profiler_stopped(self, *, for_good: bool, events: int | None = None) -> None:
        """The profiler is off, and held this number of events: the rest of the memory is the program's."""
        self._limit = None
        if events is not None:
            others = self._most_bytes - self._window_bytes - events * BYTES_PER_EVENT
            self._tensor_bytes = max(self._tensor_bytes, others)
        if for_good:
            self._is_plain = False
            self._end()
            return
        self._read_s = 0.0
        self.step_started()
        self._is_plain = True

    def step_started(self) -> int | None:
        """A step starts now; return the number of events that the profiler holds, None if it is off or unknown."""
        if not self._is_counted or self._ended.is_set():
            return None
        now = self._heap_bytes()
        self._step_bytes, self._step_s = now, time.monotonic()
        events = max(0, now - self._boundary_bytes) // BYTES_PER_EVENT
        self._boundary_bytes = min(self._boundary_bytes, now)
        if self._limit is None:
            return None
        if events and self._step_s > self._window_s:
            self._events_per_s = events / (self._step_s - self._window_s)
        return events

    def _heap_bytes(self) -> int:
        """Return the bytes in the heap, read now, or a moment ago if reading is slow."""
        if time.monotonic() - self._read_s >= self._pause_s:
            began_s = time.thread_time()  # not the time for which this thread waits for the GIL
            self._reading = heap_bytes() or 0  # None where it is unknown: `step_started` says so
            self._read_s, self._cost_s = time.monotonic(), time.thread_time() - began_s
            if self._limit is not None:
                self._window_bytes = min(self._window_bytes, self._reading)
                self._most_bytes = max(self._most_bytes, self._reading)
        return self._reading

    @property
    def _pause_s(self) -> float:
        """Shortest time between two readings."""
        return self._cost_s * (PLAIN_READ_TIMES if self._limit is None else RECORDED_READ_TIMES)

    def _watch(self) -> None:
        previous, previous_s = 0, 0.0
        while not self._ended.is_set():
            check_s = PLAIN_CHECK_S if self._limit is None else RECORDED_CHECK_S
            if self._wake.wait(max(check_s, self._pause_s)):
                self._wake.clear()
                continue
            now, limit = self._heap_bytes(), self._limit
            if limit is None:
                if self._is_plain:
                    self._tensor_bytes = max(self._tensor_bytes, now - self._step_bytes)
                previous, previous_s = 0, time.monotonic()
                continue
            events = max(0, now - self._window_bytes - self._tensor_bytes) // BYTES_PER_EVENT
            # Stop before the limit if the next check would come too late; until the call arrives in the main thread,
            # about another one passes. Short steps are stopped at their boundary.
            at_s = time.monotonic()
            more = 2 * likely_events(events - previous, at_s - previous_s, self._events_per_s)
            if events + more > limit and at_s - self._step_s >= self._min_step_s:
                self._limit = None
                self._exceeded()
            previous, previous_s = events, at_s


def likely_events(growth: int, duration_s: float, events_per_s: float | None) -> float:
    """Return how many events likely came in this time, in which the heap grew by what so many would need.

    Activations grow within a step, too. `events_per_s`: of the steps so far; None in the first step of a window, where
    all growth is taken for events.
    """
    most = math.inf if events_per_s is None else MAX_RATE_FACTOR * events_per_s * duration_s
    return min(max(0.0, growth), most)
