"""Samples of a table while they are taken: one growing array per column, eight bytes per value."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.rows import Table


class Samples:
    """The numeric columns of a table, row by row; a day of training gives a million rows."""

    def __init__(self, table: Table) -> None:
        numeric = [column for column in table.columns if column.dtype != "words"]
        self._columns: dict[str, array[Any]] = {
            column.name: array("d" if column.dtype == "float64" else "q") for column in numeric
        }

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row; a missing column is NaN."""
        for name, column in self._columns.items():
            column.append(row.get(name, math.nan))

    def __len__(self) -> int:
        return len(self._columns["at_ns"])

    def columns(self, began_ns: int, first: int = 0) -> dict[str, NDArray[Any]]:
        """All columns, from row `first`, on the clock of a run that began at this UNIX time."""
        # Copied, because an array that shares its memory could not grow any more.
        arrays = {name: np.array(column[first:], column.typecode) for name, column in self._columns.items()}
        return {**arrays, "at_ns": arrays["at_ns"] - began_ns}
