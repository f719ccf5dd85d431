"""How long GPUs were held and used, by whom, and what it cost in energy and money."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.hardware.prices import Prices
from gpulab.watch.aggregation import IDLE_FRAC
from gpulab.watch.history import Series, StoredDevice
from gpulab.watch.patterns.frame import HistoryFrame, JobUse
from gpulab.watch.schema import HOUR_S

_J_PER_KWH = 3.6e6
_SLACK_S = 30.0  # two readings of the energy counter that are further apart than a period and this have a gap between


@dataclass(frozen=True, kw_only=True)
class Usage:
    """GPU-hours of a device, a user or a job. None: not measured."""

    label: str
    measured_h: float
    held_h: float  # with a process on the GPU
    used_h: float  # utilisation times held hours
    idle_h: float  # held, and nothing was computed
    energy_kwh: float | None = None
    idle_energy_kwh: float | None = None  # of held and idle hours
    cost: float | None = None  # of held hours
    idle_cost: float | None = None

    @property
    def used_frac(self) -> float | None:
        """Share of the held time that was used."""
        return self.used_h / self.held_h if self.held_h > 0 else None

    @property
    def idle_frac(self) -> float | None:
        """Share of the held time without any work."""
        return self.idle_h / self.held_h if self.held_h > 0 else None


def device_usage(frame: HistoryFrame, prices: Prices) -> tuple[Usage, ...]:
    """Return the usage of each GPU."""
    return tuple(_of_device(frame, gpu, prices) for gpu in frame.gpus)


def user_usage(frame: HistoryFrame, prices: Prices) -> tuple[Usage, ...]:
    """Return the usage of each user, most GPU-hours first."""
    return _grouped(frame, prices, lambda job: job.process.user or "another user")


def job_usage(frame: HistoryFrame, prices: Prices) -> tuple[Usage, ...]:
    """Return the usage of each program of each user, most GPU-hours first."""
    return _grouped(frame, prices, lambda job: job.label)


def total_usage(usages: Sequence[Usage], label: str) -> Usage:
    """Return the sum."""
    return Usage(
        label=label,
        measured_h=sum(usage.measured_h for usage in usages),
        held_h=sum(usage.held_h for usage in usages),
        used_h=sum(usage.used_h for usage in usages),
        idle_h=sum(usage.idle_h for usage in usages),
        energy_kwh=_sum(usage.energy_kwh for usage in usages),
        idle_energy_kwh=_sum(usage.idle_energy_kwh for usage in usages),
        cost=_sum(usage.cost for usage in usages),
        idle_cost=_sum(usage.idle_cost for usage in usages),
    )


def energy_per_period_j(series: Series) -> np.ndarray:
    """Return the energy of each period, by the counter of the driver, else by the mean power; NaN if unknown.

    The counter begins anew with the driver: a fall is not an energy, and the power is used instead.
    """
    by_power_j = series["power_w"] * series["covered_s"]
    counter_j = np.diff(series["energy_j"], prepend=np.nan)
    adjacent = np.diff(series.at_s, prepend=-(10**9)) <= series.period_s + _SLACK_S
    plausible = adjacent & (counter_j >= 0) & ~np.isnan(counter_j)
    return np.where(plausible, counter_j, by_power_j)


def _of_device(frame: HistoryFrame, gpu: StoredDevice, prices: Prices) -> Usage:
    series = frame.series[gpu.id]
    held_h, idle_h = (float(series[name].sum()) / HOUR_S for name in ("held_s", "held_idle_s"))
    busy = np.nan_to_num(series["util_frac"]) * series["held_s"]
    energy_j = energy_per_period_j(series)
    idle = (series["held_idle_s"] > series["covered_s"] / 2) & (np.nan_to_num(series["util_frac"]) < IDLE_FRAC)
    price = prices.per_hour(gpu.name)
    return Usage(
        label=frame.label(gpu),
        measured_h=float(series["covered_s"].sum()) / HOUR_S,
        held_h=held_h,
        used_h=float(busy.sum()) / HOUR_S,
        idle_h=idle_h,
        energy_kwh=_kwh(energy_j),
        idle_energy_kwh=_kwh(energy_j[idle]) if idle.any() else 0.0 if _kwh(energy_j) is not None else None,
        cost=None if price is None else price * held_h,
        idle_cost=None if price is None else price * idle_h,
    )


def _grouped(frame: HistoryFrame, prices: Prices, key: Callable[[JobUse], str]) -> tuple[Usage, ...]:
    groups: defaultdict[str, list[Usage]] = defaultdict(list)
    for job in frame.jobs:
        groups[key(job)].append(_of_job(job, prices))
    sums = (total_usage(usages, label) for label, usages in groups.items())
    return tuple(sorted(sums, key=lambda usage: -usage.held_h))


def _of_job(job: JobUse, prices: Prices) -> Usage:
    series = job.series
    held_h = float(series["covered_s"].sum()) / HOUR_S
    use = np.where(np.isnan(series["sm_frac"]), series["device_util_frac"], series["sm_frac"])
    price = prices.per_hour(job.device.name)
    idle_h = float(series["idle_s"].sum()) / HOUR_S
    return Usage(
        label=job.label,
        measured_h=held_h,
        held_h=held_h,
        used_h=float((np.nan_to_num(use) * series["covered_s"]).sum()) / HOUR_S,
        idle_h=idle_h,
        cost=None if price is None else price * held_h,
        idle_cost=None if price is None else price * idle_h,
    )


def _kwh(energy_j: np.ndarray) -> float | None:
    return None if np.isnan(energy_j).all() else float(np.nansum(energy_j)) / _J_PER_KWH


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of the values is unknown, so that a part is not taken for the whole."""
    numbers = list(values)
    return None if not numbers or None in numbers else float(sum(number for number in numbers if number is not None))
