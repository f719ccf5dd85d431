"""When the memory of a GPU will run out, if it goes on growing as in the last minutes."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

_WINDOW_S = 600.0
_EVERY_S = 5.0  # memory is looked at this often: growth over minutes needs no more
_MIN_GROWTH = 0.02  # of the GPU's memory within the window; less is a cache that fills
_PARTS = 4  # of the window; memory must grow in each of them
NO_TREND_S = 1e9  # three decades: in place of infinity, which has no mean
_SPREAD = 0.5  # the growth of each part, as a share of the mean growth: loading a model is not a trend


class MemoryTrend:
    """Follows the used memory of one GPU. A leak grows steadily; loading a model does not."""

    def __init__(self, total_bytes: float) -> None:
        self._total_bytes = total_bytes
        self._values: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, used_bytes: float) -> float:
        """Add a value, and return the seconds until the memory is full; NO_TREND_S without a trend, NaN if unknown."""
        if self._values and at_s < self._values[-1][0]:
            self._values.clear()
        if math.isnan(used_bytes):
            return math.nan
        if not self._values or at_s - self._values[-1][0] >= _EVERY_S:
            self._values.append((at_s, used_bytes))
        while self._values[0][0] < at_s - _WINDOW_S:
            self._values.popleft()
        if self._values[-1][0] - self._values[0][0] < _WINDOW_S - 2 * _EVERY_S:
            return math.nan
        return self._time_left_s(used_bytes)

    def _time_left_s(self, used_bytes: float) -> float:
        times, used = np.array(self._values).T
        edges = np.linspace(0, len(used) - 1, _PARTS + 1).astype(int)
        growth = np.diff(used[edges]) / np.diff(times[edges])  # bytes per second in each part
        mean = (used[-1] - used[0]) / (times[-1] - times[0])
        if mean * _WINDOW_S < _MIN_GROWTH * self._total_bytes or growth.min() < _SPREAD * mean:
            return NO_TREND_S
        return float(max(0.0, (self._total_bytes - used_bytes) / mean))
