"""The parts of a recording in which the profiler ran: on disk as soon as they end, so that they need no memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from time import time_ns

from gpulab.capture.profiler import TraceWindow
from gpulab.capture.protection.guard import is_from_outside, outside_error
from gpulab.capture.protection.temporary_folder import temporary_folder
from gpulab.errors import CaptureError, TraceError
from gpulab.run import TRACED_WORK, Gap, Run

EVENTS = TRACED_WORK  # a feature of the guard, as reports name it
SLOW_STORE_NS = 200_000_000  # 40,000 events take 80 to 150 ms on a local disk


class TraceWindows:
    """Windows of the profiler that have ended, with their spans in UNIX ns.

    `path_in_spool` returns where the n-th window belongs, so that it can be recovered; None for a temporary folder.
    With `in_memory`, all windows stay in memory.
    """

    def __init__(self, path_in_spool: Callable[[int], Path | None], *, in_memory: bool) -> None:
        self.windows: list[TraceWindow] = []
        self.spans_ns: list[tuple[int, int]] = []
        self.stopped_ns = 0  # when the profiler had stopped the latest window, some time after its end
        self._path_in_spool = path_in_spool
        self._in_memory = in_memory
        self._is_storing = False
        self._folder = contextlib.ExitStack()

    def add(self, window: TraceWindow, start_ns: int, end_ns: int) -> None:
        """Add a window that has stopped."""
        self.stopped_ns = time_ns()
        self.windows.append(window)
        self.spans_ns.append((start_ns, end_ns))

    @property
    def is_latest_in_memory(self) -> bool:
        """Whether the latest window has to be written to disk."""
        return not self._in_memory and bool(self.windows) and not self.windows[-1].is_stored

    def store_latest(self) -> None:
        """Write the events of the latest window to disk: in memory, a million need more than a gigabyte.

        If that fails or is slow, this window or the later ones stay in memory until the end.
        """
        if self._is_storing or not self.is_latest_in_memory:
            return
        self._is_storing = True  # a pending call may come in between
        try:
            self._store_latest()
        finally:
            self._is_storing = False

    def _store_latest(self) -> None:
        began_ns = time_ns()
        try:
            path = self._path_in_spool(len(self.windows) - 1)
            if path is None:
                path = self._folder.enter_context(temporary_folder()) / "trace.json"
            self.windows[-1].store(path)
        except (OSError, RuntimeError) as error:
            self._in_memory = True
            if is_from_outside(error):
                raise
        if time_ns() - began_ns > SLOW_STORE_NS:
            self._in_memory = True

    def read(self, name: str) -> tuple[list[Run], list[Gap]]:
        """Return the events of each window as a run, and a gap for each window that cannot be read."""
        parts, gaps = [], []
        for window in self.windows:
            try:
                parts.append(window.read(name))
            except CaptureError as problem:
                gaps.append(Gap(what=EVENTS, why=problem.why, fix=problem.fix))
            except TraceError as problem:
                outside = outside_error(problem)  # a signal handler's TimeoutError, which is an OSError
                if outside is None or outside is problem:
                    raise
                raise outside from None
        return parts, gaps

    def close(self) -> None:
        """Free the events in memory, and delete the files that are not in the spool."""
        for window in self.windows:
            window.release()
        self._folder.close()
