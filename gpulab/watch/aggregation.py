"""Seconds to minutes and hours: means, extremes, last values, and how long a GPU was occupied and idle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import ValueKind
from gpulab.watch.schema import READINGS

Floats = NDArray[np.float64]
IDLE_FRAC = 0.05  # below this utilisation, a GPU is idle: a desktop or a waiting notebook takes a few percent
_UTIL, _ACTIVE = (next(i for i, c in enumerate(READINGS) if c.name == name) for name in ("util_frac", "sm_active_frac"))


def aggregate_device(values: Floats, occupied: NDArray[np.bool_]) -> tuple[float, ...]:
    """Return the columns SHARES and AGGREGATES of one period of one device.

    `values`: a row per second, a column per reading; `occupied`: whether a process had a context then.
    """
    idle = is_idle(values)
    covered_s, held_s, held_idle_s = float(len(values)), float(occupied.sum()), float((occupied & idle).sum())
    return (covered_s, held_s, held_idle_s, *_aggregates(values))


def is_idle(values: Floats) -> NDArray[np.bool_]:
    """Return the seconds in which the GPU computed next to nothing; an unknown utilisation is not idle.

    MIG instances have no utilisation, only activity (GPM).
    """
    activity = np.where(np.isnan(values[:, _UTIL]), values[:, _ACTIVE], values[:, _UTIL])
    return np.asarray(activity < IDLE_FRAC)


def device_utilisation(values: Floats) -> Floats:
    """Return the utilisation of each second."""
    return values[:, _UTIL]


def aggregate_process(memory_bytes: Floats, sm_frac: Floats, device_util_frac: Floats, idle: Any) -> tuple[float, ...]:
    """Return the columns PROCESS_READINGS and PROCESS_SHARES of one period of one process on one device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN: not measured
        means = float(np.nanmax(memory_bytes)), float(np.nanmean(sm_frac))
        return (*means, float(len(memory_bytes)), float(idle.sum()), float(np.nanmean(device_util_frac)))


def _aggregates(values: Floats) -> Iterator[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all NaN: not measured
        means, minima, maxima = np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0)
    for index, column in enumerate(READINGS):
        if column.value_kind is ValueKind.LEVEL:
            yield from (float(means[index]), float(minima[index]), float(maxima[index]))
        elif column.value_kind is ValueKind.COUNTER:
            yield _last(values[:, index])
        else:
            yield _all_bits(values[:, index])


def _last(values: Floats) -> float:
    measured = values[~np.isnan(values)]
    return float(measured[-1]) if len(measured) else float("nan")


def _all_bits(values: Floats) -> float:
    measured = values[~np.isnan(values)].astype(np.int64)
    return float(np.bitwise_or.reduce(measured)) if len(measured) else float("nan")
