"""Arguments that only some events have: the side tables and the memory table, collected chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows, Table, TextColumn, absent_value
from gpulab.tables import COLLECTIVES, EVENTS, GRIDS, MEMORY, SHAPES, WAITS
from gpulab.trace.columns import arguments
from gpulab.trace.columns.growing_array import GrowingArray
from gpulab.trace.columns.values import Values
from gpulab.trace.columns.vocabulary import MAX_TEXT_LENGTH, Vocabulary

# The values of an argument: JSON values, an array of numbers, or the values of a text column; None: no event has any.
ArgumentValues = arguments.Values | Values | None


class ArgumentReader(NamedTuple):
    """The argument behind a column, and the function that converts its values to an array."""

    key: str
    read: Callable[[arguments.Values], NDArray[Any]] | None = None  # None: text
    json: bool = False  # keep the original JSON text: it is long, rarely needed, and mostly the same

    @property
    def is_fraction(self) -> bool:
        """Whether its values need not be integers."""
        return self.read is arguments.occupancies


@dataclass(frozen=True, eq=False)
class SideTable:
    """A side table and its arguments. Columns that several side tables share are read in the same way."""

    table: Table
    readings: Mapping[str, ArgumentReader]
    required_column: str = ""  # if an event lacks this column, it lacks all others, too


KERNEL_ARGUMENTS = SideTable(
    GRIDS,
    {
        "grid": ArgumentReader("grid", arguments.products),
        "block": ArgumentReader("block", arguments.products),
        "registers": ArgumentReader("registers per thread", arguments.counts_and_ids),
        "shared_bytes": ArgumentReader("shared memory", arguments.counts_and_ids),
        "occupancy_frac": ArgumentReader("est. achieved occupancy %", arguments.occupancies),
    },
)
WAIT_ARGUMENTS = SideTable(
    WAITS,
    {
        "wait_on_stream": ArgumentReader("wait_on_stream", arguments.counts_and_ids),
        "wait_on_correlation": ArgumentReader("wait_on_cuda_event_record_corr_id", arguments.correlations),
    },
)
OPERATOR_ARGUMENTS = SideTable(
    SHAPES, {"shapes": ArgumentReader("Input Dims", json=True), "dtypes": ArgumentReader("Input type", json=True)}
)
COLLECTIVE_ARGUMENTS = SideTable(
    COLLECTIVES,
    {
        "collective": ArgumentReader("Collective name"),
        "dtype": ArgumentReader("dtype"),
        "elements_in": ArgumentReader("In msg nelems", arguments.addresses),
        "elements_out": ArgumentReader("Out msg nelems", arguments.addresses),
        "group": ArgumentReader("Process Group Name"),
        "group_description": ArgumentReader("Process Group Description"),
        "group_size": ArgumentReader("Group size", arguments.counts_and_ids),
        "sequence": ArgumentReader("Seq", arguments.counts_and_ids),
    },
    required_column="collective",
)


def _some_of_the_events(*names: str) -> Table:
    columns = {column.name: column for column in (*GRIDS.columns, *EVENTS.columns)}
    return Table("events", (columns["event"], *(columns[name] for name in names)))


# Columns of the events table that are empty for most events are collected separately, too, and added at the end.
_OF_CALLS: dict[str, ArgumentReader] = {
    "correlation": ArgumentReader("correlation", arguments.correlations),
    "bytes": ArgumentReader("bytes", arguments.counts_and_ids),
}
CALL_ARGUMENTS = SideTable(_some_of_the_events("correlation", "bytes"), _OF_CALLS)
DEVICE_WORK_ARGUMENTS = SideTable(
    _some_of_the_events("correlation", "bytes", "device", "stream"),
    {
        **_OF_CALLS,
        "device": ArgumentReader("device", arguments.counts_and_ids),
        "stream": ArgumentReader("stream", arguments.counts_and_ids),
    },
)
MEMORY_ARGUMENTS = SideTable(
    MEMORY,
    {
        "device": ArgumentReader("Device Id", arguments.counts_and_ids),
        "device_type": ArgumentReader(
            "Device Type", arguments.counts_and_ids
        ),  # not a column; separates host from device memory
        "bytes": ArgumentReader("Bytes", arguments.signed_amounts),
        "address": ArgumentReader("Addr", arguments.addresses),
        "allocated_bytes": ArgumentReader("Total Allocated", arguments.addresses),
        "reserved_bytes": ArgumentReader("Total Reserved", arguments.addresses),
    },
)
SIDE_TABLES_OF_WORK = (
    CALL_ARGUMENTS,
    DEVICE_WORK_ARGUMENTS,
    KERNEL_ARGUMENTS,
    OPERATOR_ARGUMENTS,
    COLLECTIVE_ARGUMENTS,
    WAIT_ARGUMENTS,
)


class SideTableBuilder:
    """Arguments for one side table so far."""

    def __init__(self, side: SideTable) -> None:
        self._side = side
        dtypes = {column.name: column.dtype for column in side.table.columns}
        self._vocabularies = {name: Vocabulary(absent=True) for name, dtype in dtypes.items() if dtype == "words"}
        self._dtypes = {
            name: np.dtype("int32" if name in self._vocabularies else dtype) for name, dtype in dtypes.items()
        }
        self._columns = {name: GrowingArray(dtype) for name, dtype in self._dtypes.items()}

    def add(self, events: Ints, values: Sequence[ArgumentValues]) -> None:
        """Add one value per event to each column; an event without any value gets no row."""
        part: dict[str, NDArray[Any]] = {}
        has_value = np.zeros(len(events), bool)
        for (name, reading), argument_values in zip(self._side.readings.items(), values, strict=True):
            dtype = self._dtypes[name]
            if argument_values is None or _is_absent(argument_values):
                part[name] = np.full(len(events), absent_value(dtype), dtype)
                continue
            if isinstance(argument_values, Values):
                part[name] = argument_values.codes_in(self._vocabularies[name])
            elif reading.read is not None:
                part[name] = arguments.cast_to_column(reading.read(argument_values), dtype)
            has_value |= part[name] == part[name] if dtype.kind == "f" else part[name] >= 0
        part["event"] = events.astype(np.int32)
        all_have_values = bool(has_value.all())
        for name, column in part.items():
            self._columns[name].append(column if all_have_values else column[has_value])

    def rows(self, position: NDArray[np.int32]) -> Rows:
        """All rows in order of their events; `position[i]` is the final index of event i, -1 if it was left out."""
        joined = {name: column.take_all() for name, column in self._columns.items()}
        event = position[joined["event"]]
        order = np.argsort(event, kind="stable")
        order = order[event[order] >= 0]
        columns: dict[str, Any] = {name: column[order] for name, column in joined.items()}
        columns["event"] = event[order]
        for name, vocabulary in self._vocabularies.items():
            columns[name] = self._text(vocabulary, columns[name])
        return self._side.table.rows(columns)

    def write_into(self, columns: dict[str, NDArray[Any]], position: NDArray[np.int32], count: int) -> None:
        """Write the values into columns with this number of rows, which are created if missing."""
        event = position[self._columns["event"].take_all()]
        has_row = event >= 0
        for name in self._side.readings:
            dtype = self._dtypes[name]
            column = columns.setdefault(name, np.full(0 if name in columns else count, absent_value(dtype), dtype))
            column[event[has_row]] = self._columns[name].take_all()[has_row]

    def _text(self, vocabulary: Vocabulary, codes: NDArray[Any]) -> TextColumn:
        """Normalise stored JSON; invalid or oversized JSON becomes absent."""
        texts = [_compact(value) if isinstance(value, bytes) else value for value in vocabulary.since(0)]
        is_valid = np.array([*(text is not None for text in texts), False], bool)
        column = vocabulary.text_column(codes, [str(text) for text in texts])
        return (
            column
            if is_valid[:-1].all()
            else TextColumn(np.where(is_valid[codes], column.codes, -1), column.vocabulary)
        )


def _is_absent(values: arguments.Values | Values) -> bool:
    """Whether all values are -1; this is counted only in a list, and only if it is likely."""
    return isinstance(values, list) and values[0] == -1 == values[-1] and values.count(-1) == len(values)


@lru_cache(maxsize=4096)  # the ranks of a job have the same shapes
def _compact(text: bytes) -> str | None:
    if len(text) > MAX_TEXT_LENGTH:
        return None
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return None
