"""A meter that reads utilisation now and then, exactly: what it shows of a GPU whose every busy moment is known.

A reading is the share of the last `window_ns` in which at least one kernel ran; that is how NVIDIA's driver defines
utilisation, over a period of its own between a sixth of a second and a second. Whoever reads it once a second sees
that much of each second, and nothing of the rest. No clock is read here: busy moments go in, readings come out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis import busy
from gpulab.errors import RunError
from gpulab.intervals import Coverage, Ints, Spans, clip, union
from gpulab.run import Run
from gpulab.wording import number

SECOND_NS = 1_000_000_000
WINDOW_NS = SECOND_NS // 6  # the driver's shortest period
STARTS = 60  # moments at which one may begin to watch, evenly spread over a period

Fracs = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Watched:
    """When a GPU was busy, within the time that is known: what there is to be seen of it."""

    spans: Spans
    start_ns: int
    end_ns: int

    @property
    def busy_frac(self) -> float:
        """The truth: the share of all this time in which it was busy."""
        return clip(self.spans, self.start_ns, self.end_ns).total_ns / (self.end_ns - self.start_ns)

    def readings(self, at_ns: Ints, window_ns: int = WINDOW_NS) -> Fracs:
        """What the meter shows at each of these moments: the busy share of the window that ends there, 0-1."""
        at = np.asarray(at_ns, np.int64)
        return np.asarray(Coverage.of(self.spans).within(at - window_ns, at) / window_ns, np.float64)

    def watch(self, rate_hz: float, begin_ns: int = 0, window_ns: int = WINDOW_NS) -> Fracs:
        """The readings of someone who looks `rate_hz` times a second, first after `begin_ns`, until the end."""
        first, every_ns = self.start_ns + window_ns + begin_ns, round(SECOND_NS / rate_hz)
        return self.readings(np.arange(first, self.end_ns + 1, every_ns, dtype=np.int64), window_ns)

    def errors(self, rate_hz: float, window_ns: int = WINDOW_NS) -> Fracs:
        """How far the mean of the readings lies from the truth, for each moment at which one may begin to watch."""
        every_ns = round(SECOND_NS / rate_hz)
        begins = np.linspace(0, every_ns, STARTS, endpoint=False).astype(np.int64)
        means = [readings.mean() for begin in begins if len(readings := self.watch(rate_hz, int(begin), window_ns))]
        return np.abs(np.array(means, np.float64) - self.busy_frac)

    def worst_error(self, rate_hz: float, window_ns: int = WINDOW_NS) -> float:
        """The largest of these errors, 0-1: by ill luck one begins to watch at just that moment."""
        errors = self.errors(rate_hz, window_ns)
        return float(errors.max()) if len(errors) else float("nan")


def watched(run: Run) -> Watched:
    """When the GPU of a run was busy, over its whole recorded steps; copies count too, which a driver leaves out.

    Raises RunError where no GPU work was recorded.
    """
    from gpulab.analysis.steps.detection import steps

    seen, found = busy(run), steps(run)
    inside = found.interior
    if seen is None or not inside.any():
        raise RunError(
            "This run does not tell when a GPU was busy.",
            why="it holds no GPU work" if seen is None else "it holds no whole recorded step",
            fix="record it with L.gpu, or with %%gpuprofile --virtual auto",
        )
    return Watched(seen.work.spans, int(found.start_ns[inside].min()), int(found.end_ns[inside].max()))


def summed_ns(run: Run, start_ns: int, end_ns: int) -> int:
    """Busy time of a window straight from the events, one after the other: a second way, to check the first by."""
    events = run.events
    work = events[events["kind"].isin(("kernel", "memcpy", "memset", "collective"))].sort_values("start_ns")
    total_ns, reached_ns = 0, start_ns
    for begin, length in zip(work["start_ns"], work["dur_ns"], strict=True):
        begin_ns, stop_ns = max(int(begin), reached_ns), min(int(begin) + int(length), end_ns)
        if stop_ns > begin_ns:
            total_ns += stop_ns - begin_ns
            reached_ns = stop_ns
    return total_ns


def regular(period_ms: int, busy_ms: int, count: int) -> Watched:
    """A job on paper: busy for the last `busy_ms` of each of `count` periods."""
    ends = np.arange(1, count + 1, dtype=np.int64) * period_ms * 1_000_000
    return Watched(union(ends - busy_ms * 1_000_000, ends), 0, count * period_ms * 1_000_000)


def readings_of(plan_ms: int, job: Watched, most_error: float = 0.05, period_ms: int = 1000) -> int | None:
    """How many readings, one every `plan_ms`, give this job's utilisation to within `most_error`, whenever one begins.

    The mean of the readings counts. `period_ms`: the job's own, over which the beginnings are spread. None where no
    number of readings is enough before the job ends.
    """
    close = _worst_after(plan_ms, job, period_ms) <= most_error
    return int(np.argmax(close)) + 1 if close.any() else None


def told(plan_ms: int | None, job: Watched, most_error: float = 0.05, period_ms: int = 1000) -> str:
    """What a plan comes to, in a sentence: the distance from the truth after as many readings as matter."""
    if not plan_ms:
        return "no pause is chosen yet"
    worst = _worst_after(plan_ms, job, period_ms)
    if not len(worst):
        return f"every {plan_ms} ms: the job is over before the first reading"
    many = readings_of(plan_ms, job, most_error, period_ms)
    count = many or len(worst)
    off = f"{number(100 * worst[count - 1], 2)} points off at worst, {number(100 * most_error, 2)} are allowed"
    return f"every {plan_ms} ms: {'after' if many else 'even after'} {count} readings {off}"


def _worst_after(plan_ms: int, job: Watched, period_ms: int) -> Fracs:
    """The largest distance of the mean from the truth after one reading, after two, and so on."""
    every_ns = plan_ms * 1_000_000
    begins = np.linspace(0, period_ms * 1_000_000, STARTS, endpoint=False).astype(np.int64)
    first = job.start_ns + WINDOW_NS + begins
    most = max(0, int((job.end_ns - int(first.max())) // every_ns) + 1)
    at = first[:, None] + every_ns * np.arange(most, dtype=np.int64)[None, :]
    means = job.readings(at.reshape(-1)).reshape(at.shape).cumsum(axis=1) / np.arange(1, most + 1)
    return np.asarray(np.abs(means - job.busy_frac).max(axis=0), np.float64)


class Late:
    """A data set whose items keep their reader waiting, as those of a file server do; an item is its own number."""

    def __init__(self, length: int, wait_s: float = 0.25) -> None:
        self.length, self.wait_s = length, wait_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index >= self.length:
            raise IndexError(index)
        time.sleep(self.wait_s)
        return index
