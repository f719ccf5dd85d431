"""Model of a utilisation meter that samples a GPU whose busy intervals are all known.

A reading is the fraction of the last `window_ns` in which at least one kernel ran. That is how NVIDIA's driver defines
utilisation; its sample period is between a sixth of a second and a second. A reading once a second therefore covers
only the last period of each second. No clock is read here: busy intervals go in, readings come out.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis import busy_time
from gpulab.errors import RunError
from gpulab.intervals import Coverage, Ints, Spans, clip, union
from gpulab.run import Run
from gpulab.wording import number, plural

SECOND_NS = 1_000_000_000
WINDOW_NS = SECOND_NS // 6  # the driver's shortest period
START_OFFSETS = 60  # start times of the sampling that are tried, evenly spread over a period

Fracs = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BusyTimeline:
    """The busy intervals of a GPU between two times."""

    spans: Spans
    start_ns: int
    end_ns: int

    @property
    def busy_frac(self) -> float:
        """The true utilisation: the fraction of the whole time in which the GPU was busy."""
        return clip(self.spans, self.start_ns, self.end_ns).total_ns / (self.end_ns - self.start_ns)

    def readings(self, at_ns: Ints, window_ns: int = WINDOW_NS) -> Fracs:
        """Return the reading at each of these times: the busy fraction of the window that ends there, 0-1."""
        at = np.asarray(at_ns, np.int64)
        return np.asarray(Coverage.of(self.spans).covered_ns(at - window_ns, at) / window_ns, np.float64)

    def sample(self, rate_hz: float, offset_ns: int = 0, window_ns: int = WINDOW_NS) -> Fracs:
        """Return the readings taken `rate_hz` times a second, from `start_ns` after the first window to the end."""
        first, every_ns = self.start_ns + window_ns + offset_ns, round(SECOND_NS / rate_hz)
        return self.readings(np.arange(first, self.end_ns + 1, every_ns, dtype=np.int64), window_ns)

    def errors(self, rate_hz: float, window_ns: int = WINDOW_NS) -> Fracs:
        """Return the error of the mean reading for each of `START_OFFSETS` start times of the sampling."""
        every_ns = round(SECOND_NS / rate_hz)
        offsets = np.linspace(0, every_ns, START_OFFSETS, endpoint=False).astype(np.int64)
        means = [readings.mean() for offset in offsets if len(readings := self.sample(rate_hz, int(offset), window_ns))]
        return np.abs(np.array(means, np.float64) - self.busy_frac)

    def worst_error(self, rate_hz: float, window_ns: int = WINDOW_NS) -> float:
        """Return the largest of these errors, 0-1: the unluckiest start time."""
        errors = self.errors(rate_hz, window_ns)
        return float(errors.max()) if len(errors) else float("nan")


def busy_timeline(run: Run) -> BusyTimeline:
    """Return the busy intervals of a run's GPU over its complete steps. Copies count too; the driver leaves them out.

    Raises RunError if no GPU work was recorded.
    """
    from gpulab.analysis.steps.detection import find_steps

    gpu_busy, run_steps = busy_time(run), find_steps(run)
    inside = run_steps.interior
    if gpu_busy is None or not inside.any():
        raise RunError(
            f"The GPU busy time of run {run.name} is unknown.",
            why="it has no GPU work" if gpu_busy is None else "it has no complete recorded step",
            fix="record a GPU run with L.gpu, or with %%gpuprofile --virtual auto",
        )
    return BusyTimeline(gpu_busy.work.spans, int(run_steps.start_ns[inside].min()), int(run_steps.end_ns[inside].max()))


def busy_ns_by_events(run: Run, start_ns: int, end_ns: int) -> int:
    """Compute the busy time of a window from the sorted events: an independent check of `BusyTimeline.busy_frac`."""
    events = run.events
    work = events[events["kind"].isin(("kernel", "memcpy", "memset", "collective"))].sort_values("start_ns")
    total_ns, reached_ns = 0, start_ns
    for begin, length in zip(work["start_ns"], work["dur_ns"], strict=True):
        begin_ns, stop_ns = max(int(begin), reached_ns), min(int(begin) + int(length), end_ns)
        if stop_ns > begin_ns:
            total_ns += stop_ns - begin_ns
            reached_ns = stop_ns
    return total_ns


def periodic_job(period_ms: int, busy_ms: int, count: int) -> BusyTimeline:
    """Return a synthetic job that is busy for the last `busy_ms` of each of `count` periods."""
    ends = np.arange(1, count + 1, dtype=np.int64) * period_ms * 1_000_000
    return BusyTimeline(union(ends - busy_ms * 1_000_000, ends), 0, count * period_ms * 1_000_000)


def readings_needed(plan_ms: int, job: BusyTimeline, max_error: float = 0.05, period_ms: int = 1000) -> int | None:
    """Return how many readings, one every `plan_ms`, keep the error of their mean within `max_error` for every start.

    `period_ms`: the period of the job, over which the start times are spread. None if the job ends before the error is
    small enough.
    """
    if not _is_interval(plan_ms):
        return None
    close = _worst_after(plan_ms, job, period_ms) <= max_error
    return int(np.argmax(close)) + 1 if close.any() else None


def describe_plan(plan_ms: int | None, job: BusyTimeline, max_error: float = 0.05, period_ms: int = 1000) -> str:
    """Describe a sampling plan in a sentence: how many readings it needs, and their worst error."""
    if not plan_ms:
        return "no sampling interval is set yet"
    if not _is_interval(plan_ms):
        return f"{plan_ms!r} is not an interval: give a positive number of milliseconds"
    worst = _worst_after(plan_ms, job, period_ms)
    if not len(worst):
        return f"every {plan_ms} ms: the job ends before the first reading"
    enough = readings_needed(plan_ms, job, max_error, period_ms)
    count = enough or len(worst)
    error = f"the worst error is {number(100 * worst[count - 1], 2)} percentage points"
    limit = f"the limit is {number(100 * max_error, 2)}"
    readings = f"{count} {plural(count, 'reading')}"
    return f"every {plan_ms} ms: {'after' if enough else 'even after'} {readings} {error}; {limit}"


def _is_interval(plan_ms: object) -> bool:
    return isinstance(plan_ms, int | float) and 0 < plan_ms < math.inf


def _worst_after(plan_ms: int, job: BusyTimeline, period_ms: int) -> Fracs:
    """Return the largest error of the mean, over all start times, after one reading, after two, and so on."""
    every_ns = plan_ms * 1_000_000
    offsets = np.linspace(0, period_ms * 1_000_000, START_OFFSETS, endpoint=False).astype(np.int64)
    first = job.start_ns + WINDOW_NS + offsets
    count = max(0, int((job.end_ns - int(first.max())) // every_ns) + 1)
    times = first[:, None] + every_ns * np.arange(count, dtype=np.int64)[None, :]
    means = job.readings(times.reshape(-1)).reshape(times.shape).cumsum(axis=1) / np.arange(1, count + 1)
    return np.asarray(np.abs(means - job.busy_frac).max(axis=0), np.float64)


class SlowDataset:
    """A data set in which each item is slow to read, as on a file server; item i is the number i."""

    def __init__(self, length: int, wait_s: float = 0.25) -> None:
        self.length, self.wait_s = length, wait_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index >= self.length:
            raise IndexError(index)
        time.sleep(self.wait_s)
        return index
