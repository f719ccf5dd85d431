"""The minutes of all devices and jobs of a time, loaded once for all patterns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpulab.watch.history import GpuHistory, HistoryEvent, Series, StoredDevice, StoredProcess
from gpulab.watch.schema import DAY_S, HOUR_S, MINUTES, SHARES

Floats = NDArray[np.float64]
# What patterns and tables look at: reading all columns of a month takes most of a second per GPU.
_COLUMNS = (
    *SHARES,
    "util_frac",
    "sm_clock_mhz",
    "throttle_bits",
    "temperature_c",
    "power_w",
    "energy_j",
)
_MIN_COVERED = 0.5  # of an hour or a day; with less, it is not judged


@dataclass(frozen=True, kw_only=True, eq=False)
class JobUse:
    """What one process did on one device, minute by minute."""

    process: StoredProcess
    device: StoredDevice
    series: Series

    @property
    def label(self) -> str:
        """The process in words."""
        return f"{self.process.name} of {self.process.user or 'another user'}"


@dataclass(frozen=True, kw_only=True, eq=False)
class HistoryFrame:
    """Minutes of all GPUs, and of all processes on them, of a time. Hours and days are those of local time."""

    from_s: float
    until_s: float
    gpus: tuple[StoredDevice, ...]
    series: Mapping[int, Series]  # by device
    jobs: tuple[JobUse, ...]
    events: tuple[HistoryEvent, ...]
    hosts: tuple[DayGrid, ...] = ()  # CPU load of each host

    @classmethod
    def load(cls, history: GpuHistory, from_s: float, until_s: float) -> HistoryFrame:
        """Load a time, at most the month for which minutes are stored."""
        gpus = tuple(device for device in history.devices() if not device.is_host)
        series = {gpu.id: history.device_series(gpu.id, from_s, until_s, MINUTES, _COLUMNS) for gpu in gpus}
        return cls(
            from_s=from_s,
            until_s=until_s,
            gpus=gpus,
            series=series,
            jobs=tuple(_jobs(history, gpus, from_s, until_s)),
            events=history.events(from_s, until_s),
            hosts=tuple(
                DayGrid.of(history.device_series(host.id, from_s, until_s, MINUTES, (*SHARES, "cpu_frac")), "cpu_frac")
                for host in history.devices()
                if host.is_host
            ),
        )

    def label(self, gpu: StoredDevice) -> str:
        """The device in words; with the host if there are several."""
        same_host = [other for other in self.gpus if other.host == gpu.host]
        hosts = {other.host for other in self.gpus}
        name = f"GPU {same_host.index(gpu)}" if len(self.gpus) > 1 else "the GPU"
        return f"{name} of {gpu.host}" if len(hosts) > 1 else name

    @cached_property
    def days(self) -> Mapping[int, DayGrid]:
        """Each device's days and hours."""
        return {gpu.id: DayGrid.of(self.series[gpu.id]) for gpu in self.gpus}


@dataclass(frozen=True, kw_only=True, eq=False)
class DayGrid:
    """Seconds of a device by day and hour of local time: measured, held by a process, held without work."""

    days: tuple[datetime, ...]  # local midnights
    covered_s: Floats  # days x 24
    held_s: Floats
    held_idle_s: Floats
    used_s: Floats  # utilisation times seconds

    @classmethod
    def of(cls, series: Series, column: str = "util_frac") -> DayGrid:
        """Sum the minutes of a device; `column`: its utilisation."""
        local_s = series.at_s + utc_offset_s(series.at_s)
        day, hour = local_s // DAY_S, local_s % DAY_S // HOUR_S
        first, last = (int(day.min()), int(day.max())) if len(day) else (0, -1)
        index = (day - first) * 24 + hour
        used_s = np.nan_to_num(series[column]) * series["covered_s"]
        grids = [
            np.bincount(index, weights, (last - first + 1) * 24).reshape(-1, 24).astype(np.float64)
            for weights in (series["covered_s"], series["held_s"], series["held_idle_s"], used_s)
        ]
        midnights = tuple(datetime.utcfromtimestamp(number * DAY_S) for number in range(first, last + 1))
        return cls(days=midnights, covered_s=grids[0], held_s=grids[1], held_idle_s=grids[2], used_s=grids[3])

    def idle_share(self) -> Floats:
        """Share of each hour in which the GPU was held without work; NaN if too little of it was measured."""
        with np.errstate(invalid="ignore", divide="ignore"):
            share = self.held_idle_s / self.covered_s
        return np.where(self.covered_s >= _MIN_COVERED * HOUR_S, share, np.nan)


def utc_offset_s(at_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offset of local time from UTC at each time; it changes twice a year in many places."""
    hours, inverse = np.unique(at_s // HOUR_S, return_inverse=True)
    return np.array([_offset_s(hour * HOUR_S) for hour in hours.tolist()], np.int64)[inverse]


def _offset_s(at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s).astimezone().utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _jobs(history: GpuHistory, gpus: tuple[StoredDevice, ...], from_s: float, until_s: float) -> Iterator[JobUse]:
    processes, devices = history.processes(), {gpu.id: gpu for gpu in gpus}
    series = history.process_series(from_s, until_s, MINUTES)
    pairs = series["process"].astype(np.int64) * 2**20 + series["device"].astype(np.int64)
    for pair in np.unique(pairs).tolist():
        process, device = divmod(int(pair), 2**20)
        if device not in devices or process not in processes:
            continue
        rows = pairs == pair
        part = Series(
            period_s=series.period_s,
            at_s=series.at_s[rows],
            columns={name: values[rows] for name, values in series.columns.items()},
        )
        yield JobUse(process=processes[process], device=devices[device], series=part)
