"""A thread that asks on a schedule, and says how late it was and what it missed."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpulab.run import Gap
from gpulab.wording import duration

_MOST_FAILURES = 3  # in a row; then a reader is not called again
_MISSED_FRAC, _MISSED = 0.1, 5  # worth telling beyond both: stopping the profiler alone costs a few ticks
_JOIN_S = 5.0  # a driver call can hang for good; the kernel must not hang with it


class Tick(NamedTuple):
    """One round of questions: when it was (UNIX time), and how far behind its schedule."""

    at_ns: int
    late_ns: int


@dataclass(frozen=True, kw_only=True)
class Reader:
    """What is called at every tick; `what` names it for people, in case it fails."""

    what: str
    read: Callable[[Tick], None]


class Schedule:
    """The instants `first + n * period`. An instant that was missed is counted and never made up for."""

    def __init__(self, first_ns: int, period_ns: int) -> None:
        self.due_ns = first_ns
        self.period_ns = period_ns
        self.missed = 0
        self.latest_ns = 0  # the greatest lateness so far

    def take(self, now_ns: int) -> int:
        """The instant that is due is served now: how late that is. The next one due lies after now."""
        late_ns = now_ns - self.due_ns
        missed = late_ns // self.period_ns
        self.missed += missed
        self.latest_ns = max(self.latest_ns, late_ns)
        self.due_ns += (missed + 1) * self.period_ns
        return late_ns


class Sampler:
    """Calls each reader every `period_ns` on a thread of its own, from `start()` to `stop()`.

    An exception of a reader takes nothing else with it: it becomes a gap, and after three in a row that reader is
    left alone. `steady_ns` times the schedule and must not jump, `clock_ns` stamps the ticks in UNIX time (as the
    trace does), `wait` sleeps so many seconds or until `stop`, and says whether it is time to stop.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        *,
        period_ns: int,
        clock_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self.ticks = 0
        self._readers = list(readers)
        self._period_ns = period_ns
        self._clock_ns, self._steady_ns = clock_ns, steady_ns
        self._ending = threading.Event()
        self._wait = wait or self._ending.wait
        self._schedule = Schedule(steady_ns(), period_ns)
        self._thread: threading.Thread | None = None
        self._failures: dict[str, tuple[int, Gap]] = {}
        self._in_a_row: dict[str, int] = {}
        self._hung = False

    @property
    def missed(self) -> int:
        """How many ticks of the schedule never took place, because the thread was not let run."""
        return self._schedule.missed

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What failed, once for each cause, and whether much was missed."""
        gaps = [_times(gap, times) for times, gap in self._failures.values()]
        if self.missed >= _MISSED and self.missed > _MISSED_FRAC * (self.ticks + self.missed):
            gaps.append(self._loss())
        if self._hung:
            gaps.append(
                Gap(
                    what="the last sensor readings",
                    why="a sensor has not answered for seconds, and its thread could not be ended",
                    fix="restart the kernel; if it happens again, look for Xid messages in dmesg",
                )
            )
        return tuple(gaps)

    def start(self) -> None:
        """Begin in a thread that has this thread's context: without it ipykernel 7 cannot tell whose output it is."""
        self._ending.clear()
        self._schedule = Schedule(self._steady_ns(), self._period_ns)
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._loop,), name="gpulab-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, after one last reading; the thread is gone when this returns. Stopping twice is stopping once."""
        self._ending.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_JOIN_S)
        self._hung = thread.is_alive()
        self._thread = None

    def _loop(self) -> None:
        while not self._wait(max(0, self._schedule.due_ns - self._steady_ns()) / 1e9):
            self._call(self._readers, self._schedule.take(self._steady_ns()))
        # The end is a measurement too, unless one was taken just now.
        if self._schedule.due_ns - self._steady_ns() < self._period_ns // 2:
            self._call(self._readers, 0)

    def _call(self, readers: Sequence[Reader], late_ns: int) -> None:
        tick = Tick(self._clock_ns(), late_ns)
        self.ticks += 1
        for reader in tuple(readers):
            try:
                reader.read(tick)
            except Exception as error:  # one sensor must not end the others; it is told as a gap
                self._failed(reader, error)
            else:
                self._in_a_row[reader.what] = 0

    def _failed(self, reader: Reader, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}"
        gap = Gap(what=reader.what, why=f"reading failed with {cause}", fix="please report this as a fault of gpulab")
        key = f"{reader.what}: {cause}"
        times, _ = self._failures.get(key, (0, gap))
        self._failures[key] = (times + 1, gap)
        self._in_a_row[reader.what] = self._in_a_row.get(reader.what, 0) + 1
        if self._in_a_row[reader.what] >= _MOST_FAILURES:
            self._readers.remove(reader)

    def _loss(self) -> Gap:
        planned = self.ticks + self.missed
        return Gap(
            what=f"{self.missed} of {planned} sensor readings",
            why=f"the sampling thread was not let run, once for {duration(self._schedule.latest_ns)}: "
            "code that holds the GIL, or a machine that is overloaded",
            fix="nothing needs doing; what happened meanwhile is missing from the sensors, not from the trace",
        )


def _times(gap: Gap, times: int) -> Gap:
    return gap if times == 1 else Gap(what=gap.what, why=f"{gap.why} ({times} times)", fix=gap.fix)
