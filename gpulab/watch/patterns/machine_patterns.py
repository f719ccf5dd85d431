"""Patterns of the machine: clocks that fell from one day to the next, heat, errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np

from gpulab.sensor_tables import DEVICE_SAMPLES, ThrottleReason
from gpulab.watch.device_events import AVAILABILITY, MEMORY_ERROR
from gpulab.watch.history import Series, StoredDevice
from gpulab.watch.patterns.frame import Floats, HistoryFrame, utc_offset_s
from gpulab.watch.patterns.pattern import Pattern
from gpulab.watch.schema import DAY_S, HOUR_S
from gpulab.wording import count, percent, quantity

_BUSY = 0.7  # utilisation of a minute whose clock counts
_MIN_MINUTES, _MIN_DAYS = 30, 3
_FALL, _SPREAD = 0.07, 3.0  # as a share of the clock; in spreads of the days
_HEAT = int(ThrottleReason.HEAT | ThrottleReason.HARDWARE_HEAT)
_HOT_SHARE = 0.05  # of the busy minutes of a day
_FLAGS = DEVICE_SAMPLES.column("throttle_bits").flags


def lower_clocks(frame: HistoryFrame) -> Iterator[Pattern]:
    """GPUs whose clock under load fell from one day on, and stayed lower."""
    for gpu in frame.gpus:
        days, clocks = _busy_clocks(frame.series[gpu.id])
        change = _lasting_fall(clocks)
        if change is None:
            continue
        before_mhz, after_mhz = float(np.median(clocks[:change])), float(np.median(clocks[change:]))
        day = datetime.utcfromtimestamp(int(days[change]) * DAY_S)
        yield Pattern(
            kind="lower_clocks",
            claim=f"{frame.label(gpu)} is slower since {day:%a %d %b}: its clock under load fell from "
            f"{quantity(before_mhz, 'MHz')} to {quantity(after_mhz, 'MHz')}",
            evidence=(
                f"medians of {change} days before and {len(clocks) - change} days since",
                *_reasons_since(frame.series[gpu.id], int(days[change])),
            ),
            advice="compare power limit and clock limits with the other GPUs: nvidia-smi -q -d POWER,CLOCK,PERFORMANCE",
            device=gpu.id,
        )


def _busy_clocks(series: Series) -> tuple[np.ndarray, Floats]:
    """Return the days with enough busy minutes, and the median clock of each."""
    day = (series.at_s + utc_offset_s(series.at_s)) // DAY_S
    busy = (series["util_frac"] > _BUSY) & ~np.isnan(series["sm_clock_mhz"])
    days, counts = np.unique(day[busy], return_counts=True)
    days = days[counts >= _MIN_MINUTES]
    return days, np.array([np.median(series["sm_clock_mhz"][busy & (day == each)]) for each in days])


def _lasting_fall(clocks: Floats) -> int | None:
    """Return the first day of a lasting fall: every day after it is lower than every day before it."""
    best, best_fall = None, 0.0
    for change in range(_MIN_DAYS, len(clocks) - _MIN_DAYS + 1):
        before, after = clocks[:change], clocks[change:]
        fall = float(np.median(before) - np.median(after))
        spread = float(np.median(abs(before - np.median(before))) + np.median(abs(after - np.median(after))))
        is_lasting = after.max() < before.min() and fall > max(_FALL * float(np.median(before)), _SPREAD * spread)
        if is_lasting and fall > best_fall:
            best, best_fall = change, fall
    return best


def _reasons_since(series: Series, day: int) -> Iterator[str]:
    since = series.at_s + utc_offset_s(series.at_s) >= day * DAY_S
    bits = series["throttle_bits"]
    for bit, label in _FLAGS:
        shares = [_share_of(bits[part], bit) for part in (~since, since)]
        if shares[1] > shares[0] + 0.2:
            yield f"throttled by {label} in {percent(shares[1])} of the minutes since, {percent(shares[0])} before"


def _share_of(bits: Floats, mask: int) -> float:
    measured = bits[~np.isnan(bits)].astype(np.int64)
    return float(((measured & mask) != 0).mean()) if len(measured) else 0.0


def heat(frame: HistoryFrame) -> Iterator[Pattern]:
    """GPUs that heat throttles on several days."""
    for gpu in frame.gpus:
        series = frame.series[gpu.id]
        local_s = series.at_s + utc_offset_s(series.at_s)
        bits = np.nan_to_num(series["throttle_bits"]).astype(np.int64)
        hot, busy = (bits & _HEAT) != 0, series["util_frac"] > _BUSY
        days = [day for day in np.unique(local_s // DAY_S) if _is_hot_day(local_s // DAY_S == day, hot, busy)]
        if len(days) < _MIN_DAYS:
            continue
        yield Pattern(
            kind="heat",
            claim=f"{frame.label(gpu)} is throttled by heat on {count(len(days), 'day')}{_usual_hours(local_s[hot])}",
            evidence=(
                f"{percent(float(hot[busy].mean()))} of its busy minutes, at up to "
                f"{quantity(float(np.nanmax(series['temperature_c'])), '°C')}",
            ),
            advice="look at the fans, the dust filters and the temperature of the room",
            device=gpu.id,
        )


def _is_hot_day(day: np.ndarray, hot: np.ndarray, busy: np.ndarray) -> bool:
    minutes = int((day & busy).sum())
    return minutes >= _MIN_MINUTES and (day & busy & hot).sum() >= _HOT_SHARE * minutes


def _usual_hours(local_s: np.ndarray) -> str:
    """Return the shortest span of hours of the day in which nine tenths of it happen, if that is a third of the day."""
    by_hour = np.bincount(local_s % DAY_S // HOUR_S, minlength=24)
    for length in range(1, 9):
        sums = [np.roll(by_hour, -hour)[:length].sum() for hour in range(24)]
        first = int(np.argmax(sums))
        if sums[first] >= 0.9 * by_hour.sum():
            return f", between {first}:00 and {(first + length) % 24}:00"
    return ""


def repeated_errors(frame: HistoryFrame) -> Iterator[Pattern]:
    """GPUs that were lost, or had memory errors, on two days or more."""
    for gpu in frame.gpus:
        for kind, label in ((AVAILABILITY, "could not be read"), (MEMORY_ERROR, "had memory errors")):
            events = [event for event in frame.events if event.device == gpu.id and event.kind == kind]
            if kind == AVAILABILITY:
                events = [event for event in events if "bus" in event.text or "reset" in event.text]
            days = {datetime.fromtimestamp(event.at_s).date() for event in events}
            if len(events) >= 3 and len(days) >= 2:
                yield _error_pattern(frame, gpu, label, len(events), len(days), events[-1].text)


def _error_pattern(frame: HistoryFrame, gpu: StoredDevice, label: str, times: int, days: int, last: str) -> Pattern:
    return Pattern(
        kind="repeated_errors",
        claim=f"{frame.label(gpu)} {label} {times} times on {days} days",
        evidence=(f"the last time: {last}",),
        advice="run nvidia-smi -q -d ECC,ROW_REMAPPER and look at dmesg for Xid messages; ask for a replacement",
        device=gpu.id,
    )
