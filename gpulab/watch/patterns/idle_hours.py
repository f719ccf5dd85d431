"""GPUs that are held and idle at the same hours, for days without end, or that nobody uses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np

from gpulab.watch.history import StoredDevice
from gpulab.watch.patterns.frame import DayGrid, Floats, HistoryFrame, JobUse, utc_offset_s
from gpulab.watch.patterns.pattern import Pattern
from gpulab.watch.schema import DAY_S, HOUR_S
from gpulab.wording import count, duration, percent, size

_IDLE = 0.8  # of an hour: it was held without work
_USUAL = 0.75  # of the days on which an hour must be idle to be called usual
_RARE = 0.4  # of the days; in the other hours of the day, idleness must be rarer
_MIN_DAYS, _MIN_WEEKENDS = 6, 2
_MIN_HOURS = 3
_ABANDONED_S = DAY_S
_MIN_HELD_BYTES = 200 << 20  # less than a CUDA context: display servers and exporters hold some MiB for good
_PAUSE_SHARE = 0.6  # an earlier pause of this share of the present one
_WORKED = 0.02  # of its time: a process that works less does nothing
_UNUSED_S = 14 * DAY_S


def idle_nights(frame: HistoryFrame) -> Iterator[Pattern]:
    """Hours of the day in which a GPU is held and idle on most days, and not in the others."""
    for gpu in frame.gpus:
        grid = frame.days[gpu.id]
        idle = grid.idle_share()
        hours = _usual_hours(idle)
        if hours is None:
            continue
        first, length = hours
        chosen = (first + np.arange(length)) % 24
        idle_days = int(((idle[:, chosen] >= _IDLE).mean(axis=1) >= _USUAL).sum())
        wasted_h = float(grid.held_idle_s[:, chosen].sum()) / HOUR_S
        span = f"from {first}:00 to {(first + length) % 24}:00"
        yield Pattern(
            kind="idle_hours",
            claim=f"{frame.label(gpu)} is held and idle {span} on {idle_days} of {len(idle)} days",
            evidence=(
                f"in these hours it is idle for {_mean(idle[:, chosen])} of the time, in the others for "
                f"{_mean(np.delete(idle, chosen, axis=1))}",
                *_holders(frame, gpu, chosen),
            ),
            advice="queue a job for these hours, or end the processes in the evening",
            device=gpu.id,
            wasted_gpu_h=wasted_h,
        )


def _mean(shares: Floats) -> str:
    return percent(float(np.nanmean(shares)))


def _usual_hours(idle: Floats) -> tuple[int, int] | None:
    """Return the first hour and the length of the longest span of hours that are idle on most days."""
    measured = (~np.isnan(idle)).sum(axis=0)
    if len(idle) < _MIN_DAYS or measured.min() < _MIN_DAYS:
        return None
    share = np.nansum(idle >= _IDLE, axis=0) / measured  # of the days, for each hour of the day
    usual = share >= _USUAL
    if usual.all() or not usual.any():
        return None
    start = int(np.flatnonzero(~usual)[0])
    turned = np.roll(usual, -start)  # begins with an hour that is not idle, so that a night is one span
    edges = np.flatnonzero(np.diff(np.concatenate(([0], turned.astype(int), [0]))))
    spans = [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    first, length = max(spans, key=lambda span: span[1])
    others = np.delete(np.roll(share, -start), np.arange(first, first + length))
    if length < _MIN_HOURS or float(np.mean(others)) > _RARE:
        return None
    return (first + start) % 24, length


def idle_weekends(frame: HistoryFrame) -> Iterator[Pattern]:
    """Weekends on which a GPU is held and idle, although it works during the week."""
    for gpu in frame.gpus:
        grid = frame.days[gpu.id]
        shares = _by_day(grid)
        weekend = np.array([day.weekday() >= 5 for day in grid.days])
        measured = ~np.isnan(shares)
        idle_days = weekend & measured & (shares >= _IDLE)
        if idle_days.sum() < 2 * _MIN_WEEKENDS or idle_days.sum() < _USUAL * (weekend & measured).sum():
            continue
        during_week = shares[~weekend & measured]
        if len(during_week) < _MIN_DAYS or float(during_week.mean()) > _RARE:
            continue
        yield Pattern(
            kind="idle_weekends",
            claim=f"{frame.label(gpu)} is held and idle on weekends: {count(int(idle_days.sum()), 'day')}",
            evidence=(
                f"on weekends it is idle for {_mean(shares[weekend & measured])} of the time, during the week for "
                f"{_mean(during_week)}",
            ),
            advice="queue long jobs on Friday, or end the processes",
            device=gpu.id,
            wasted_gpu_h=float(grid.held_idle_s[idle_days].sum()) / HOUR_S,
        )


def _by_day(grid: DayGrid) -> Floats:
    """Share of each day in which the GPU was held without work; NaN if less than half of it was measured."""
    covered_s = grid.covered_s.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(covered_s >= DAY_S / 2, grid.held_idle_s.sum(axis=1) / covered_s, np.nan)


def abandoned_processes(frame: HistoryFrame) -> Iterator[Pattern]:
    """Processes that have held memory for a day or more and computed nothing."""
    for job in frame.jobs:
        tail = _idle_tail(job)
        if tail is None or job.series.at_s[-1] < _last_reading_s(frame, job) - HOUR_S:  # it has ended
            continue
        since_s, idle_s = tail
        memory = float(np.nanmax(job.series["memory_bytes"][-60:]))
        if memory < _MIN_HELD_BYTES:
            continue
        since = datetime.fromtimestamp(since_s).strftime("%a %d %b %H:%M")
        yield Pattern(
            kind="abandoned",
            claim=f"{job.label} holds {size(memory)} of {frame.label(job.device)}, and has not used it since {since}",
            evidence=(f"no work for {duration(idle_s * 1e9)}; process {job.process.pid}",),
            advice="ask its owner; if it is done, end the process or shut down the kernel",
            device=job.device.id,
            wasted_gpu_h=idle_s / HOUR_S,
        )


def _last_reading_s(frame: HistoryFrame, job: JobUse) -> float:
    return float(frame.series[job.device.id].at_s[-1])


def _idle_tail(job: JobUse) -> tuple[float, float] | None:
    """Return since when a process has been idle to its end, and for how long; None if that is less than a day.

    A process that worked again after about as long a pause is not abandoned: it rests on weekends, or waits for data.
    """
    series = job.series
    use = np.where(np.isnan(series["sm_frac"]), series["device_util_frac"], series["sm_frac"])
    working = np.flatnonzero(np.nan_to_num(use, nan=1.0) > _WORKED)
    first = int(working[-1]) + 1 if len(working) else 0
    idle_s = float(series["covered_s"][first:].sum())
    longest_pause_s = float(np.diff(series.at_s[working]).max()) if len(working) > 1 else 0.0
    is_new = idle_s >= _ABANDONED_S and longest_pause_s < _PAUSE_SHARE * idle_s
    return (float(series.at_s[first]), idle_s) if is_new else None


def unused_gpus(frame: HistoryFrame) -> Iterator[Pattern]:
    """GPUs that no process held for two weeks or more, while others of the same host were held."""
    for gpu in frame.gpus:
        series = frame.series[gpu.id]
        covered_s = float(series["covered_s"].sum())
        if covered_s < _UNUSED_S or series["held_s"].sum() > 0:
            continue
        others = [frame.series[other.id] for other in frame.gpus if other.host == gpu.host and other is not gpu]
        held_shares = [float(other["held_s"].sum() / max(1.0, other["covered_s"].sum())) for other in others]
        if held_shares and max(held_shares) >= 0.5:
            yield Pattern(
                kind="unused",
                claim=f"{frame.label(gpu)} was not used in {duration(covered_s * 1e9)}",
                evidence=(f"other GPUs of {gpu.host} were held for up to {percent(max(held_shares))} of the time",),
                advice="see whether jobs can see it (CUDA_VISIBLE_DEVICES, the scheduler), or use it for a second job",
                device=gpu.id,
            )


def _holders(frame: HistoryFrame, gpu: StoredDevice, hours: np.ndarray) -> Iterator[str]:
    """Name the processes that held the GPU in these hours."""
    names: dict[str, float] = {}
    for job in frame.jobs:
        if job.device is gpu:
            in_hours = np.isin(_hour_of_day(job), hours)
            names[job.label] = names.get(job.label, 0.0) + float(job.series["idle_s"][in_hours].sum())
    largest = sorted(names.items(), key=lambda item: -item[1])[:3]
    if largest:
        yield "held by " + ", ".join(f"{label} ({duration(idle_s * 1e9)})" for label, idle_s in largest)


def _hour_of_day(job: JobUse) -> np.ndarray:
    local_s = job.series.at_s + utc_offset_s(job.series.at_s)
    return np.asarray(local_s % DAY_S // HOUR_S)
