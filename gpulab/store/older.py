"""What files of older schemas have elsewhere, moved to where it is now, one change after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Column
from gpulab.rows import Array, Table, Words, absent
from gpulab.store.format import Schema
from gpulab.store.unpacking import Columns, Unpacked
from gpulab.tables import EVENTS, GRIDS

Tables = dict[str, Unpacked]  # by name, as the file has them


@dataclass(frozen=True)
class Change:
    """What a schema has elsewhere than the schemas before it."""

    schema: Schema  # the first that has it so
    gone: Mapping[str, tuple[Column, ...]]  # columns, by table, that only files before it have
    move: Callable[[Tables], None]


def wanted(table: Table, schema: Schema) -> tuple[Column, ...]:
    """The columns to read of a table in a file of this schema: those of today, and those that are to be moved."""
    return (*table.columns, *(column for change in _since(schema) for column in change.gone.get(table.name, ())))


def bring_up(tables: Tables, schema: Schema) -> None:
    """Move what a file of this schema has elsewhere."""
    for change in _since(schema):
        change.move(tables)


def _since(schema: Schema) -> list[Change]:
    return [change for change in CHANGES if schema < change.schema]


def _grids_beside(tables: Tables) -> None:
    """1.1: how a kernel was launched stands in the side table of those events that tell it."""
    events = tables.get(EVENTS.name)
    if events is None:
        return
    columns: dict[str, Array] = {}
    told: NDArray[np.bool_] = np.zeros(events.count, bool)
    for column in _GRID_OF_EVENTS:
        if column.name in events.columns:
            values = events.columns.pop(column.name)
            assert not isinstance(values, Words), "these three are numbers"
            columns[column.name] = values
            told |= values == values if values.dtype.kind == "f" else values != absent(values.dtype)
    if told.any():
        picked: Columns = {name: values[told] for name, values in columns.items()}
        picked["event"] = np.flatnonzero(told).astype(np.int32)
        tables[GRIDS.name] = Unpacked(picked, int(told.sum()), ())


# Written out: this is how it was, whatever becomes of today's table.
_GRID_OF_EVENTS = (
    Column("grid", "int64", "thread blocks of a kernel; -1 if not told"),
    Column("block", "int32", "threads per block; -1 if not told"),
    Column("occupancy_frac", "float32", "occupancy as Kineto estimates it, 0-1; NaN if not told"),
)

CHANGES = (Change((1, 1), {EVENTS.name: _GRID_OF_EVENTS}, _grids_beside),)
