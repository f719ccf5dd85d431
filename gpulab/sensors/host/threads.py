"""The Python threads of this process: how much CPU time the recorded one and the others use, and where they are."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable

from gpulab.run import Gap
from gpulab.sensors.host import cpu_clocks
from gpulab.sensors.host.frames import user_line

_WORTH_S = 0.001  # a thread that used less since the reading before is idle, and no answer to who was busy


class Threads:
    """Watches the thread that is recorded, and all other Python threads but the one that asks."""

    def __init__(self, recorded: int, cpu_s: Callable[[int | None], float] = cpu_clocks.thread_cpu_s) -> None:
        self.recorded = recorded  # as threading.get_ident() numbers it
        self.busiest: str | None = None  # the other thread that used most CPU time between the last two readings
        self._cpu_s = cpu_s
        self._used_s: dict[int, float] = {}  # of every other thread there was, by its native id
        self._tells = True

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be read, and why."""
        if self._tells:
            return ()
        return (
            Gap(
                what="CPU time of single threads",
                why=f"{sys.platform} has no clock for each thread that another one may read",
                fix="run on Linux to learn how much the other threads compute",
            ),
        )

    def read(self) -> dict[str, float]:
        """`main_cpu_s`, `main_delayed_s` and `others_cpu_s` of HOST_SAMPLES; NaN where the system does not tell."""
        main_s = delayed_s = math.nan
        most_s, busiest = _WORTH_S, None
        for thread in threading.enumerate():
            if thread.ident == threading.get_ident() or thread.native_id is None:
                continue
            now_s = self._cpu_s(thread.native_id)
            if thread.ident == self.recorded:
                main_s, delayed_s = now_s, cpu_clocks.thread_delayed_s(thread.native_id)
            elif not math.isnan(now_s):
                grown_s = now_s - self._used_s.get(thread.native_id, 0.0)
                if grown_s < 0:  # a new thread under an old one's number: what that one used stays counted
                    self._used_s[-len(self._used_s) - 1] = self._used_s[thread.native_id]
                self._used_s[thread.native_id] = now_s
                if grown_s >= most_s:
                    most_s, busiest = grown_s, thread
        self._tells = self._tells and not math.isnan(main_s)
        self.busiest = None if busiest is None else _place(busiest)
        others_s = sum(self._used_s.values()) if self._tells else math.nan
        return {"main_cpu_s": main_s, "main_delayed_s": delayed_s, "others_cpu_s": others_s}


def _place(thread: threading.Thread) -> str:
    """The user's line it is at; where it runs none of the user's code, its name."""
    frame = sys._current_frames().get(thread.ident) if thread.ident is not None else None
    return user_line(frame) or thread.name
