"""A thread that calls readers on a schedule, and records its delays and missed ticks."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpulab.run import Gap
from gpulab.sensors.background_thread import BackgroundThread
from gpulab.wording import duration

_MOST_FAILURES = 3  # in a row; then a reader is not called again
_MISSED_FRAC, _MISSED = 0.1, 5  # reported beyond both: stopping the profiler alone costs a few ticks
_JOIN_S = 5.0  # a driver call can hang forever; the kernel must not hang with it


class Tick(NamedTuple):
    """One round of readings: its UNIX time, and its delay after the scheduled time."""

    at_ns: int
    late_ns: int


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A function called at every tick; `what` names it in gaps."""

    label: str
    read: Callable[[Tick], None]


class SamplingTimes:
    """Scheduled times `first + n * period`. Missed times are counted and not made up for."""

    def __init__(self, first_ns: int, period_ns: int) -> None:
        self.due_ns = first_ns
        self.period_ns = period_ns
        self.missed = 0
        self.max_delay_ns = 0  # longest delay so far

    def advance(self, now_ns: int) -> int:
        """Serve the due time and return the delay; the next due time is after now."""
        late_ns = now_ns - self.due_ns
        missed = late_ns // self.period_ns
        self.missed += missed
        self.max_delay_ns = max(self.max_delay_ns, late_ns)
        self.due_ns += (missed + 1) * self.period_ns
        return late_ns


class Sampler:
    """Calls each reader every `period_ns` in its own thread, from `start()` to `stop()`.

    An exception of a reader affects no other: it becomes a gap, and after three in a row the reader is not called
    again. `steady_ns` times the schedule and must be monotonic, `clock_ns` stamps the ticks in UNIX time (as in the
    trace), `wait` sleeps for this many seconds or until `stop`, and returns whether to stop.
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
        self._schedule = SamplingTimes(steady_ns(), period_ns)
        self._thread: BackgroundThread | None = None
        self._failures: dict[str, tuple[int, Gap]] = {}
        self._in_a_row: dict[str, int] = {}
        self._hung = False

    @property
    def missed(self) -> int:
        """Number of scheduled ticks that did not take place, because the thread was not scheduled in time."""
        return self._schedule.missed

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Failures, one for each cause, and whether many ticks were missed."""
        gaps = [_times(gap, times) for times, gap in self._failures.values()]
        if self.missed >= _MISSED and self.missed > _MISSED_FRAC * (self.ticks + self.missed):
            gaps.append(self._loss())
        if self._hung:
            gaps.append(
                Gap(
                    what="the last sensor readings",
                    why="a sensor has not answered for seconds, and its thread could not be stopped",
                    fix="restart the kernel; if it happens again, look for Xid messages in dmesg",
                )
            )
        return tuple(gaps)

    def start(self) -> None:
        """Start a thread with this thread's context: without it, ipykernel 7 cannot assign the output to a cell."""
        self._ending.clear()
        self._schedule = SamplingTimes(self._steady_ns(), self._period_ns)
        run = contextvars.copy_context().run
        thread = BackgroundThread(target=run, args=(self._loop,), name="gpulab-sampler")
        thread.start()  # fails where no thread can start
        self._thread = thread

    def stop(self) -> None:
        """Stop after one last reading; the thread has ended when this returns. A second call does nothing."""
        self._ending.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.wait(_JOIN_S)
        self._hung = thread.is_alive()
        self._thread = None

    def _loop(self) -> None:
        while not self._wait(max(0, self._schedule.due_ns - self._steady_ns()) / 1e9):
            self._call(self._readers, self._schedule.advance(self._steady_ns()))
        # The end is a measurement, too, unless one was taken just now.
        if self._schedule.due_ns - self._steady_ns() < self._period_ns // 2:
            self._call(self._readers, 0)

    def _call(self, readers: Sequence[Reader], late_ns: int) -> None:
        tick = Tick(self._clock_ns(), late_ns)
        self.ticks += 1
        for reader in tuple(readers):
            try:
                reader.read(tick)
            except Exception as error:  # one sensor must not end the others; it is reported as a gap
                self._failed(reader, error)
            else:
                self._in_a_row[reader.label] = 0

    def _failed(self, reader: Reader, error: Exception) -> None:
        cause = f"{type(error).__name__}: {error}"
        gap = Gap(what=reader.label, why=f"reading failed with {cause}", fix="please report this as a bug in gpulab")
        key = f"{reader.label}: {cause}"
        times, _ = self._failures.get(key, (0, gap))
        self._failures[key] = (times + 1, gap)
        self._in_a_row[reader.label] = self._in_a_row.get(reader.label, 0) + 1
        if self._in_a_row[reader.label] >= _MOST_FAILURES:
            self._readers.remove(reader)

    def _loss(self) -> Gap:
        planned = self.ticks + self.missed
        return Gap(
            what=f"{self.missed} of {planned} sensor readings",
            why=f"the sampling thread was delayed, once for {duration(self._schedule.max_delay_ns)}: "
            "code held the GIL, or the machine is overloaded",
            fix="nothing to do; these moments are missing from the sensors, not from the trace",
        )


def _times(gap: Gap, times: int) -> Gap:
    return gap if times == 1 else Gap(what=gap.what, why=f"{gap.why} ({times} times)", fix=gap.fix)
