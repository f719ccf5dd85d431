"""Patterns of jobs: regular dips, GPUs of a job that do nothing, memory that fills until the job ends."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from gpulab.watch.patterns.frame import Floats, HistoryFrame, JobUse
from gpulab.watch.patterns.pattern import Pattern
from gpulab.watch.schema import HOUR_S
from gpulab.wording import count, duration, percent

_LOW, _BUSY = 0.3, 0.6  # utilisation
_MIN_DIPS = 6
_TOLERANCE, _PRESENT = 0.1, 0.8  # of the interval; of the expected times
_CANDIDATES, _STARTS = 40, 4
_MIN_INTERVAL_S = 300.0
_MIN_DIP_SHARE = 0.03  # of the job's time
_MIN_JOB_S = 2 * HOUR_S
_FULL, _GROWN = 0.95, 0.2  # of the GPU's memory
_MIN_RESTARTS, _RESTART_S = 4, 900.0


def regular_dips(frame: HistoryFrame) -> Iterator[Pattern]:
    """Jobs whose utilisation falls at regular intervals: a validation, a checkpoint. Other dips may lie in between."""
    for job in frame.jobs:
        series = job.series
        util_frac = series["device_util_frac"]
        measured = ~np.isnan(util_frac)
        if measured.sum() < 120 or np.median(util_frac[measured]) < _BUSY:
            continue
        dips = _spans(np.nan_to_num(util_frac, nan=1.0) < _LOW)
        regular = (
            regular_chain(series.at_s[[first for first, _ in dips]].astype(float)) if len(dips) >= _MIN_DIPS else ()
        )
        if not regular:
            continue
        length_s = float(sum(dips[index][1] - dips[index][0] for index in regular)) * series.period_s
        share = length_s / (len(series) * series.period_s)
        if share < _MIN_DIP_SHARE:
            continue
        begins_s = [series.at_s[dips[index][0]] for index in regular]
        interval, length = (
            duration(seconds * 1e9) for seconds in (np.median(np.diff(begins_s)), length_s / len(regular))
        )
        yield Pattern(
            kind="regular_dips",
            claim=f"{job.label}: utilisation of {frame.label(job.device)} falls below {percent(_LOW)} every "
            f"{interval}, for {length}",
            evidence=(
                f"{len(regular)} times, {percent(share)} of its time; the median of all minutes is "
                f"{percent(float(np.median(util_frac[measured])))}",
            ),
            advice="if it validates then: less often, with workers and a larger batch; if it saves: in the background",
            device=job.device.id,
            wasted_gpu_h=length_s / HOUR_S,
        )


def regular_chain(times_s: Floats) -> tuple[int, ...]:
    """Return the indices of events that follow each other at one interval; () if there is no such chain.

    A chain has an event at four fifths of its expected times or more, each within a tenth of the interval, from the
    first quarter of the time to the last, and contains at least half of all events. Random events make none.
    """
    best: tuple[int, ...] = ()
    gaps_s = np.concatenate([times_s[skip:] - times_s[:-skip] for skip in (1, 2, 3) if len(times_s) > skip])
    candidates = np.unique(np.round(np.quantile(gaps_s, np.linspace(0.05, 0.95, _CANDIDATES)) / 60) * 60)
    for interval_s in candidates[candidates >= _MIN_INTERVAL_S].tolist():
        for start in range(min(_STARTS, len(times_s))):
            chain = _chain(times_s, start, interval_s)
            if len(chain) > len(best):
                best = chain
    return best if len(best) >= max(_MIN_DIPS, len(times_s) / 2) else ()


def _chain(times_s: Floats, start: int, interval_s: float) -> tuple[int, ...]:
    """Follow events at an interval from one of them; () if too many are missing."""
    chain, expected, at_s = [start], 1, float(times_s[start])
    while at_s + interval_s <= times_s[-1] + _TOLERANCE * interval_s:
        at_s += interval_s
        expected += 1
        nearest = int(np.argmin(abs(times_s - at_s)))
        if abs(times_s[nearest] - at_s) <= _TOLERANCE * interval_s:
            chain.append(nearest)
            at_s = float(times_s[nearest])  # the interval may drift
    return tuple(chain) if len(chain) >= _PRESENT * expected else ()


def _spans(mask: np.ndarray) -> list[tuple[int, int]]:
    """Return first and last+1 of each run of True; those that touch the ends are left out: they may be cut."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(int), [0]))))
    spans = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return [span for span in spans if span[0] > 0 and span[1] < len(mask)]


def idle_gpus_of_jobs(frame: HistoryFrame) -> Iterator[Pattern]:
    """Jobs on several GPUs that leave some of them without work."""
    by_job: defaultdict[tuple[str, str], list[JobUse]] = defaultdict(list)
    for use in frame.jobs:
        by_job[use.process.host, use.process.job].append(use)
    for uses in by_job.values():
        if len({use.device.id for use in uses}) < 2:
            continue
        mean = {use: _mean_use(use) for use in uses if use.series["covered_s"].sum() >= _MIN_JOB_S}
        idle = [use for use, value in mean.items() if value < 0.05]
        busy = [use for use, value in mean.items() if value > 0.5]
        if not idle or not busy:
            continue
        labels = ", ".join(sorted({frame.label(use.device) for use in idle}))
        held_h = sum(float(use.series["covered_s"].sum()) for use in idle) / HOUR_S
        yield Pattern(
            kind="idle_gpus_of_job",
            claim=f"{busy[0].label} holds {labels}, but computes on {count(len(busy), 'other GPU')} only",
            evidence=(
                f"held for {duration(held_h * HOUR_S * 1e9)} with a utilisation of "
                f"{percent(max(mean[use] for use in idle))} at most; the others have "
                f"{percent(float(np.mean([mean[use] for use in busy])))}",
            ),
            advice="start one process per GPU (torchrun), or hide the others with CUDA_VISIBLE_DEVICES",
            device=idle[0].device.id,
            wasted_gpu_h=held_h,
        )


def _mean_use(use: JobUse) -> float:
    """Return the mean utilisation by a process, or of its device; 1 if unknown, so that nothing is claimed."""
    values: Floats = np.where(np.isnan(use.series["sm_frac"]), use.series["device_util_frac"], use.series["sm_frac"])
    return 1.0 if np.isnan(values).all() else float(np.nanmean(values))


def memory_restarts(frame: HistoryFrame) -> Iterator[Pattern]:
    """Programs that end with full memory and start again, over and over: a leak, with a restart around it."""
    lives: defaultdict[tuple[str, int], list[JobUse]] = defaultdict(list)
    for use in frame.jobs:
        if use.device.memory_bytes and _fills_memory(use):
            lives[use.label, use.device.id].append(use)
    for (label, device), uses in lives.items():
        uses.sort(key=lambda use: int(use.series.at_s[0]))
        pauses_s = [later.series.at_s[0] - earlier.series.at_s[-1] for earlier, later in itertools.pairwise(uses)]
        if len(uses) < _MIN_RESTARTS or float(np.median(pauses_s)) > _RESTART_S:
            continue
        life_s = float(np.median([use.series.at_s[-1] - use.series.at_s[0] for use in uses]))
        yield Pattern(
            kind="memory_restarts",
            claim=f"{label} fills the memory of {frame.label(uses[0].device)} and starts again, every "
            f"{duration(life_s * 1e9)}",
            evidence=(f"{len(uses)} times; each life ends above {percent(_FULL)} of the memory",),
            advice="find the leak: %%gpuprofile --level deep names the objects that hold memory when it runs out",
            device=device,
        )


def _fills_memory(use: JobUse) -> bool:
    memory = use.series["memory_bytes"] / (use.device.memory_bytes or np.nan)
    if len(memory) < 5 or np.isnan(memory).all():
        return False
    return bool(np.nanmax(memory[-3:]) >= _FULL and np.nanmax(memory[-3:]) - np.nanmin(memory[:3]) >= _GROWN)
