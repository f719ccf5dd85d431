"""Samples of a table while they are taken: one growing array per column, eight bytes per value.

One thread appends while others read: a row counts as soon as all of its columns have it.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpulab.rows import Table


class Samples:
    """The columns of a table, row by row; a day of training gives a million rows."""

    def __init__(self, table: Table) -> None:
        self._columns: dict[str, array[Any] | list[str | None]] = {
            column.name: [] if column.dtype == "words" else array("d" if column.dtype == "float64" else "q")
            for column in table.columns
        }

    def append(self, row: Mapping[str, float | str | None]) -> None:
        """Add a row; a missing number is NaN, a missing text None."""
        for name, column in self._columns.items():
            if isinstance(column, list):
                text = row.get(name)
                column.append(None if text is None else sys.intern(str(text)))
            else:
                column.append(row.get(name, math.nan))

    def __len__(self) -> int:
        return min(map(len, self._columns.values()))

    def columns(self, began_ns: int, first: int = 0) -> dict[str, Any]:
        """All columns, from row `first`, on the clock of a run that began at this UNIX time."""
        end = len(self)
        # Copied, because an array that shares its memory could not grow any more.
        columns: dict[str, Any] = {
            name: column[first:end] if isinstance(column, list) else np.array(column[first:end], column.typecode)
            for name, column in self._columns.items()
        }
        return {**columns, "at_ns": columns["at_ns"] - began_ns}
