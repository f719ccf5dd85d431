"""An array that grows in place, so that a column is never in memory twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_INITIAL_SIZE = 4096


class GrowingArray:
    """Values in order of appending.

    A list of small arrays that is joined at the end would leave free memory of the column's size, unusable by others.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._array: NDArray[Any] = np.empty(_INITIAL_SIZE, dtype)
        self._count = 0

    def append(self, values: NDArray[Any]) -> None:
        """Append values."""
        end = self._count + len(values)
        if end > len(self._array):
            # The operating system moves large blocks without copying; unwritten parts take no memory.
            self._array.resize(max(end, len(self._array) * 3 // 2), refcheck=False)
        self._array[self._count : end] = values
        self._count = end

    def take_all(self) -> NDArray[Any]:
        """Return all values and leave this array empty."""
        array, self._array = self._array, np.empty(0, self._array.dtype)
        array.resize(self._count, refcheck=False)
        self._count = 0
        return array
