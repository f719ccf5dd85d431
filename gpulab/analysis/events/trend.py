"""Trend of a series: the Theil-Sen slope, which is robust to outliers, with a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike

MAX_POINTS = 200  # longer series are thinned evenly to this many points: 20,000 pairs, a few ms
Z_95 = 1.96


@dataclass(frozen=True)
class Trend:
    """A slope and its 95 % confidence interval, in units of y per unit of x."""

    slope: float
    low: float
    high: float
    points: int

    @property
    def rises(self) -> bool:
        """Whether the confidence interval excludes zero growth."""
        return self.low > 0


def fit_trend(x: ArrayLike, y: ArrayLike) -> Trend | None:
    """Return the median slope over all pairs of points; None with fewer than five points of different x.

    The confidence interval is that of Sen (1968), from the variance of Kendall's tau.
    """
    at, value = np.asarray(x, float), np.asarray(y, float)
    finite = np.isfinite(at) & np.isfinite(value)
    at, value = at[finite], value[finite]
    if len(at) > MAX_POINTS:
        index = np.linspace(0, len(at) - 1, MAX_POINTS).round().astype(int)
        at, value = at[index], value[index]
    count = len(at)
    first, second = np.triu_indices(count, 1)
    dx = at[second] - at[first]
    slopes = np.sort((value[second] - value[first])[dx != 0] / dx[dx != 0])
    if count < 5 or len(slopes) < 10:
        return None
    half = Z_95 * sqrt(count * (count - 1) * (2 * count + 5) / 18) / 2
    low = max(0, round(len(slopes) / 2 - half))
    high = min(len(slopes) - 1, round(len(slopes) / 2 + half))
    return Trend(float(np.median(slopes)), float(slopes[low]), float(slopes[high]), count)
