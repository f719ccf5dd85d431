"""Columns that a file of an older schema version lacks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpulab.columns import Column
from gpulab.rows import Array, Rows, Table, TextColumn, absent_value
from gpulab.store.format import invalid_run_error

_REQUIRED = ("event", "kind", "start_ns", "end_ns", "dur_ns", "at_ns")  # these columns have no absent value


def complete_table(table: Table, columns: Mapping[str, Array | TextColumn], count: int) -> Rows:
    """Rows of these columns, the missing ones absent. Raises StoreError if a required column is missing."""
    complete = dict(columns)
    for column in table.columns:
        if column.name not in complete:
            if column.name in _REQUIRED:
                raise invalid_run_error(f"the table {table.name} lacks its column {column.name}")
            complete[column.name] = _absent_column(column, count)
    return table.rows(complete)


def _absent_column(column: Column, count: int) -> Array | TextColumn:
    if column.dtype == "words":
        return TextColumn(np.full(count, -1, np.int32), ())
    dtype = np.dtype(column.dtype)
    return np.full(count, absent_value(dtype), dtype)
