"""Build the tables of a trace from arrays, for sources that are read by column and not event by event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.rows import Array, Rows, Table, absent_value
from gpulab.tables import COLLECTIVES, EVENTS, GRIDS, MEMORY, SHAPES, WAITS
from gpulab.trace.columns.builder import TraceTables
from gpulab.trace.columns.row_times import time_order, usable_times
from gpulab.trace.columns.vocabulary import Vocabulary, encodable_name
from gpulab.trace.reading.limits import Losses


@dataclass(frozen=True, eq=False)
class EventArrays:
    """Events as columns, in any order.

    `columns` are those of the table EVENTS, on the clock of the trace; `kind`, `name`, `start_ns` and `dur_ns` are
    required, and missing columns are absent. Names are codes of one Vocabulary. `grids` are columns of the table GRIDS
    with a value for each of these events.
    """

    columns: Mapping[str, Array]
    grids: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["start_ns"])


def build_tables(
    parts: Sequence[EventArrays], names: Vocabulary, threads: Sequence[str], losses: Losses
) -> TraceTables:
    """All events of the parts in order of time, from the earliest; events without a usable time are counted as lost.

    `threads`: names of the host threads, which the column `thread` refers to.
    """
    columns = _joined(EVENTS, [part.columns for part in parts], [len(part) for part in parts])
    start, dur = columns["start_ns"], columns["dur_ns"]
    usable = usable_times(start, dur, losses)
    order = time_order(start, dur)
    order = order[usable[order]]
    rows = {name: values[order] for name, values in columns.items()}
    zero = int(rows["start_ns"][0]) if len(order) else 0
    rows["start_ns"] = rows["start_ns"] - zero
    span = int((rows["start_ns"] + rows["dur_ns"]).max(initial=0))
    events: dict[str, Any] = {**rows, "name": names.text_column(rows["name"])}
    position = np.full(len(start), -1, np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    return TraceTables(
        EVENTS.rows(events),
        grids=_grids(parts, position),
        shapes=SHAPES.empty(),
        collectives=COLLECTIVES.empty(),
        waits=WAITS.empty(),
        memory=MEMORY.empty(),
        zero_ns=zero,
        span_ns=span,
        threads=_unique(threads),
        unknown={},
    )


def _joined(table: Table, parts: Sequence[Mapping[str, Array]], lengths: Sequence[int]) -> dict[str, Array]:
    """The columns of all parts, one after the other, without the column `event`."""
    joined = {}
    for column in table.columns:
        if column.name == "event":
            continue
        dtype = np.dtype("int32" if column.dtype == "words" else column.dtype)
        absent = absent_value(dtype)
        values = [
            _fitting(part[column.name], dtype) if column.name in part else np.full(length, absent, dtype)
            for part, length in zip(parts, lengths, strict=True)
        ]
        joined[column.name] = np.concatenate(values) if values else np.empty(0, dtype)
    return joined


def _fitting(values: Array, dtype: np.dtype[Any]) -> Array:
    """The values in this dtype; numbers that do not fit are absent."""
    if dtype.kind != "i" or values.dtype == dtype:
        return values.astype(dtype)
    limits = np.iinfo(dtype)
    fits = (values >= limits.min) & (values <= limits.max)
    return np.where(fits, values, -1).astype(dtype)


def _grids(parts: Sequence[EventArrays], position: Array) -> Rows:
    """The launch configurations, in order of their events; `position[i]` is the row of event i, or -1."""
    first = np.cumsum([0, *(len(part) for part in parts)])
    with_grids = [index for index, part in enumerate(parts) if part.grids]
    columns = _joined(GRIDS, [parts[index].grids for index in with_grids], [len(parts[index]) for index in with_grids])
    events = [position[first[index] : first[index + 1]] for index in with_grids]
    event = np.concatenate(events) if events else np.empty(0, np.int32)
    present = event >= 0
    if columns:
        present &= np.any([values >= 0 for values in columns.values()], axis=0)  # not of a copy among kernels
    order = np.argsort(event, kind="stable")
    order = order[present[order]]
    return GRIDS.rows({"event": event[order], **{name: values[order] for name, values in columns.items()}})


def _unique(threads: Sequence[str]) -> tuple[str, ...]:
    """The names of the threads; repeated ones are numbered."""
    counts: dict[str, int] = {}
    names = []
    for name in map(encodable_name, threads):
        counts[name] = counts.get(name, 0) + 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(names)
