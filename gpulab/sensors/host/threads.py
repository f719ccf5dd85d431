"""CPU time and current line of this process's Python threads: the recorded thread and all others."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable

from gpulab.run import Gap
from gpulab.sensors.host import cpu_clocks
from gpulab.sensors.host.frames import user_line
from gpulab.sensors.host.proc_files import ProcFile, delayed_s, schedstat
from gpulab.sensors.thread_frames import current_frame

_MIN_BUSY_S = 0.001  # a thread with less CPU time since the previous reading counts as idle


class ThreadReader:
    """Reads the recorded thread and all other Python threads except the calling one."""

    def __init__(self, recorded: int, cpu_s: Callable[[int | None], float] = cpu_clocks.thread_cpu_s) -> None:
        self.recorded = recorded  # a number of threading.get_ident()
        self.busiest: str | None = (
            None  # location of the other thread with the most CPU time since the previous reading
        )
        self._cpu_s = cpu_s
        self._used_s: dict[int, float] = {}  # of every other thread so far, by native id
        self._has_clocks = True
        self._schedstat: ProcFile | None = None  # of the recorded thread

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Failed readings, with reasons."""
        if self._has_clocks:
            return ()
        return (
            Gap(
                what="CPU time of single threads",
                why=f"{sys.platform} has no per-thread CPU clock that other threads can read",
                fix="run on Linux to measure the CPU time of other threads",
            ),
        )

    def read(self) -> dict[str, float]:
        """`main_cpu_s`, `main_delayed_s` and `others_cpu_s` of HOST_SAMPLES; NaN if unknown."""
        main_s = late_s = math.nan
        most_s, busiest = _MIN_BUSY_S, None
        for thread in threading.enumerate():
            if thread.ident == threading.get_ident() or thread.native_id is None:
                continue
            now_s = self._cpu_s(thread.native_id)
            if thread.ident == self.recorded:
                self._schedstat = self._schedstat or schedstat(thread.native_id)
                main_s, late_s = now_s, delayed_s(self._schedstat)
            elif not math.isnan(now_s):
                grown_s = now_s - self._used_s.get(thread.native_id, 0.0)
                if grown_s < 0:  # a new thread has reused the id: keep the time of the old one
                    self._used_s[-len(self._used_s) - 1] = self._used_s[thread.native_id]
                self._used_s[thread.native_id] = now_s
                if grown_s >= most_s:
                    most_s, busiest = grown_s, thread
        self._has_clocks = self._has_clocks and not math.isnan(main_s)
        self.busiest = None if busiest is None else _location(busiest)
        others_s = sum(self._used_s.values()) if self._has_clocks else math.nan
        return {"main_cpu_s": main_s, "main_delayed_s": late_s, "others_cpu_s": others_s}

    def close(self) -> None:
        """Close the file of the recorded thread."""
        if self._schedstat is not None:
            self._schedstat.close()


def _location(thread: threading.Thread) -> str:
    """The user's line that the thread executes; without any, the name of the thread."""
    frame = current_frame(thread.ident)
    return user_line(frame) or thread.name
