"""Run code for a limited time: until enough steps are measured, or until it ends by itself."""

from __future__ import annotations

import ctypes
import threading
import time
import warnings
from collections.abc import Callable
from multiprocessing import popen_fork

_POLL_S = 0.1
_CLEANUP_S = 2.0  # for `finally` blocks of the cell, before it is ended again
_FIRST_STEPS = 3  # after which the time counts
_SETTLING = 100  # repetitions of a loop, of which one would do
_MIN_STEPS = 40  # even if they take longer: the first ten are warm-up, and workers deliver batches in bursts
_MAX_FACTOR = 8  # times the requested time, for slow steps
MAX_STARTUP_S = 60.0  # until the first step


class TimeUp(BaseException):
    """Ends the cell; not an Exception, so that a cell that catches those ends, too."""


class TimedRun:
    """Runs code, and ends it from another thread `seconds` after its first steps.

    `ended_early` then says whether the time ran out; `without_steps`: no step was detected in `startup_s`.
    """

    def __init__(self, seconds: float, count_steps: Callable[[], int], *, startup_s: float = MAX_STARTUP_S) -> None:
        self.ended_early = False
        self.without_steps = False
        self._seconds, self._startup_s = seconds, startup_s
        self._count_steps = count_steps
        self._finished = threading.Event()
        self._lock = threading.Lock()

    def run(self, code: Callable[[], object]) -> None:
        """Call `code` in this thread. Its exceptions are raised."""
        watcher = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="gpulab trial", daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the end may come just after a library opened a socket
            try:
                try:
                    watcher.start()
                    code()
                finally:
                    self._end_watch()
            except TimeUp:
                self._end_watch()  # again, in case it arrived there; the next one would come seconds later

    def _end_watch(self) -> None:
        with self._lock:  # from here on, the other thread raises nothing
            self._finished.set()
        for _ in range(_SETTLING):  # what it has raised arrives here at the latest
            pass

    def _watch(self, thread: int) -> None:
        began_s, first_s = time.monotonic(), 0.0
        while not self._finished.wait(_POLL_S):
            now_s, steps = time.monotonic(), self._count_steps()
            if not first_s and steps >= _FIRST_STEPS:
                first_s = now_s
            if not steps and now_s - began_s > self._startup_s:
                self.without_steps = True
            measured_s = now_s - first_s if first_s else 0.0
            is_enough = measured_s > self._seconds and steps >= _MIN_STEPS
            if is_enough or measured_s > _MAX_FACTOR * self._seconds or self.without_steps:
                if not self._raise_time_up(thread):
                    continue
                self._finished.wait(_CLEANUP_S)  # then again, as code may catch it

    def _raise_time_up(self, thread: int) -> bool:
        """End the code; return False if that must wait, because the thread is just starting a process."""
        with self._lock:
            if self._finished.is_set():
                return True
            if _is_forking(thread):
                return False
            self.ended_early = True
            _raise_in(thread, TimeUp)
        return True


def _is_forking(thread: int) -> bool:
    """Whether a thread is just starting a process.

    Modules run hooks around a fork, which lock the logging module, for example. PyTorch's and Python's code starts
    processes there only. An exception in such a hook would be lost, and the lock would stay locked.
    """
    from gpulab.sensors.thread_frames import current_frame  # a script may not have imported NumPy yet

    frame = current_frame(thread)
    while frame is not None:
        if frame.f_code.co_filename == popen_fork.__file__:
            return True
        frame = frame.f_back
    return False


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception in a thread when it next enters a function or repeats a loop.

    It cannot be taken back: with NULL, CPython 3.11 goes on looking for it, and hangs as soon as a debugger traces.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
