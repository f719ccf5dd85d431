"""Arguments that only some events have: the side tables and the memory table, collected chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows, Table, Words, absent
from gpulab.tables import COLLECTIVES, EVENTS, GRIDS, MEMORY, SHAPES, WAITS
from gpulab.trace.columns import arguments
from gpulab.trace.columns.growing_array import Growing
from gpulab.trace.columns.vocabulary import LONGEST, Vocabulary


class Reading(NamedTuple):
    """The argument behind a column, and the function that converts its values to an array."""

    key: str
    read: Callable[[Sequence[Any]], NDArray[Any]] | None = None  # None: text
    json: bool = False  # keep the original JSON text: it is long, rarely needed, and mostly the same


@dataclass(frozen=True, eq=False)
class Side:
    """A side table and its arguments. Columns that several side tables share are read in the same way."""

    table: Table
    readings: Mapping[str, Reading]
    mark: str = ""  # if an event lacks this column, it lacks all others, too


OF_KERNELS = Side(
    GRIDS,
    {
        "grid": Reading("grid", arguments.products),
        "block": Reading("block", arguments.products),
        "registers": Reading("registers per thread", arguments.wholes),
        "shared_bytes": Reading("shared memory", arguments.wholes),
        "occupancy_frac": Reading("est. achieved occupancy %", arguments.occupancies),
    },
)
OF_WAITS = Side(
    WAITS,
    {
        "wait_on_stream": Reading("wait_on_stream", arguments.wholes),
        "wait_on_correlation": Reading("wait_on_cuda_event_record_corr_id", arguments.correlations),
    },
)
OF_OPERATORS = Side(SHAPES, {"shapes": Reading("Input Dims", json=True), "dtypes": Reading("Input type", json=True)})
OF_COMMUNICATION = Side(
    COLLECTIVES,
    {
        "collective": Reading("Collective name"),
        "dtype": Reading("dtype"),
        "elements_in": Reading("In msg nelems", arguments.addresses),
        "elements_out": Reading("Out msg nelems", arguments.addresses),
        "group": Reading("Process Group Name"),
        "group_size": Reading("Group size", arguments.wholes),
        "sequence": Reading("Seq", arguments.wholes),
    },
    mark="collective",
)


def _some_of_the_events(*names: str) -> Table:
    columns = {column.name: column for column in (*GRIDS.columns, *EVENTS.columns)}
    return Table("events", (columns["event"], *(columns[name] for name in names)))


# Columns of the events table that are empty for most events are collected separately, too, and added at the end.
_OF_CALLS: dict[str, Reading] = {
    "correlation": Reading("correlation", arguments.correlations),
    "bytes": Reading("bytes", arguments.wholes),
}
OF_CALLS = Side(_some_of_the_events("correlation", "bytes"), _OF_CALLS)
OF_DEVICE_WORK = Side(
    _some_of_the_events("correlation", "bytes", "device", "stream"),
    {**_OF_CALLS, "device": Reading("device", arguments.wholes), "stream": Reading("stream", arguments.wholes)},
)
OF_MEMORY = Side(
    MEMORY,
    {
        "device": Reading("Device Id", arguments.wholes),
        "device_type": Reading("Device Type", arguments.wholes),  # not a column; separates host from device memory
        "bytes": Reading("Bytes", arguments.amounts),
        "address": Reading("Addr", arguments.addresses),
        "allocated_bytes": Reading("Total Allocated", arguments.addresses),
        "reserved_bytes": Reading("Total Reserved", arguments.addresses),
    },
)
SIDES = (OF_CALLS, OF_DEVICE_WORK, OF_KERNELS, OF_OPERATORS, OF_COMMUNICATION, OF_WAITS)


class Gathered:
    """Arguments for one side table so far."""

    def __init__(self, side: Side) -> None:
        self._side = side
        dtypes = {column.name: column.dtype for column in side.table.columns}
        self._vocabularies = {name: Vocabulary(absent=True) for name, dtype in dtypes.items() if dtype == "words"}
        self._dtypes = {
            name: np.dtype("int32" if name in self._vocabularies else dtype) for name, dtype in dtypes.items()
        }
        self._columns = {name: Growing(dtype) for name, dtype in self._dtypes.items()}

    def take(self, events: Ints, values: Sequence[Sequence[Any]]) -> None:
        """Add one value per event to each column; an event without any value gets no row."""
        part: dict[str, NDArray[Any]] = {}
        has_value = np.zeros(len(events), bool)
        for (name, reading), argument_values in zip(self._side.readings.items(), values, strict=True):
            dtype = self._dtypes[name]
            if reading.read is None:
                part[name] = self._vocabularies[name].codes_of_any(argument_values)
            elif _is_absent(argument_values):
                part[name] = np.full(len(events), absent(dtype), dtype)
            else:
                part[name] = arguments.fitting(reading.read(argument_values), dtype)
            has_value |= part[name] == part[name] if dtype.kind == "f" else part[name] >= 0
        part["event"] = events.astype(np.int32)
        for name, column in part.items():
            self._columns[name].add(column[has_value])

    def rows(self, position: NDArray[np.int32]) -> Rows:
        """All rows in order of their events; `position[i]` is the final index of event i, -1 if it was left out."""
        joined = {name: column.taken() for name, column in self._columns.items()}
        event = position[joined["event"]]
        order = np.argsort(event, kind="stable")
        order = order[event[order] >= 0]
        columns: dict[str, Any] = {name: column[order] for name, column in joined.items()}
        columns["event"] = event[order]
        for name, vocabulary in self._vocabularies.items():
            columns[name] = self._text(vocabulary, columns[name])
        return self._side.table.rows(columns)

    def put_into(self, columns: dict[str, NDArray[Any]], position: NDArray[np.int32], count: int) -> None:
        """Write the values into columns with this number of rows, which are created if missing."""
        event = position[self._columns["event"].taken()]
        has_row = event >= 0
        for name in self._side.readings:
            dtype = self._dtypes[name]
            column = columns.setdefault(name, np.full(0 if name in columns else count, absent(dtype), dtype))
            column[event[has_row]] = self._columns[name].taken()[has_row]

    def _text(self, vocabulary: Vocabulary, codes: NDArray[Any]) -> Words:
        """Normalise stored JSON; invalid or oversized JSON becomes absent."""
        texts = [_compact(value) if isinstance(value, bytes) else value for value in vocabulary.since(0)]
        is_valid = np.array([*(text is not None for text in texts), False], bool)
        column = vocabulary.words(codes, [str(text) for text in texts])
        return column if is_valid[:-1].all() else Words(np.where(is_valid[codes], column.codes, -1), column.vocabulary)


def _is_absent(values: Sequence[Any]) -> bool:
    """Whether all values are -1; a full count is made only if this is likely."""
    return values[0] == -1 == values[-1] and list(values).count(-1) == len(values)


def _compact(text: bytes) -> str | None:
    if len(text) > LONGEST:
        return None
    try:
        return json.dumps(json.loads(text))
    except (ValueError, RecursionError):
        return None
