"""An array that grows in place, so that a column never stands in memory twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST = 4096


class Growing:
    """Values one after the other.

    Lists of small arrays, joined at the end, leave memory as large as the column behind that is of no use to others.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._array: NDArray[Any] = np.empty(_FIRST, dtype)
        self._count = 0

    def add(self, values: NDArray[Any]) -> None:
        """More values."""
        end = self._count + len(values)
        if end > len(self._array):
            # The system moves large blocks without copying; what is not written yet takes no memory.
            self._array.resize(max(end, len(self._array) * 3 // 2), refcheck=False)
        self._array[self._count : end] = values
        self._count = end

    def taken(self) -> NDArray[Any]:
        """All values; nothing is left here."""
        array, self._array = self._array, np.empty(0, self._array.dtype)
        array.resize(self._count, refcheck=False)
        self._count = 0
        return array
