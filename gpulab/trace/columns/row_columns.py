"""The columns of a chunk that the compiled parser read: integers, and the distinct texts behind codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpulab.intervals import Ints
from gpulab.trace.columns.arguments import Values as NumberValues
from gpulab.trace.columns.chunk_columns import Ids, Label
from gpulab.trace.columns.side_tables import MEMORY_ARGUMENTS, ArgumentReader, ArgumentValues, SideTable
from gpulab.trace.columns.time_values import DecimalTimes
from gpulab.trace.columns.values import CodedValues, Mask

_DUR_DECIMALS = 32  # the first bit of them in the column "decimals"


class RowLayout(NamedTuple):
    """Indices of the columns: fields of an event, and arguments."""

    fields: Mapping[str, int]
    scopes: Mapping[str, int]  # values of the field "scope"
    arguments: Mapping[ArgumentReader, int]
    label: int  # the argument that is the name of a thread


class RowColumns:
    """The columns, of shape (columns, events); `texts` are the distinct values of each; `used` are those with values.

    They are valid until the next chunk is parsed.
    """

    def __init__(self, columns: Ints, texts: Sequence[Sequence[Any]], used: frozenset[int], layout: RowLayout) -> None:
        self._columns, self._texts, self._used, self._layout = columns, texts, used, layout
        scopes, work = self._columns[layout.fields["scope"]], layout.scopes["work"]
        is_work = scopes == work
        self._work: slice | Ints = slice(None)
        self._memory = self._label = np.empty(0, np.int64)
        if not is_work.all():
            self._work = np.flatnonzero(is_work)
            self._memory = np.flatnonzero(scopes == layout.scopes["memory"])
            self._label = np.flatnonzero(scopes == layout.scopes["label"])

    @property
    def starts(self) -> DecimalTimes:
        """Start of each event of work."""
        return self._starts(self._work)

    @property
    def durs(self) -> DecimalTimes:
        """Duration of each event of work."""
        return DecimalTimes(self._field("dur", self._work), self._field("decimals", self._work), _DUR_DECIMALS)

    @property
    def names(self) -> CodedValues:
        """Name of each event of work."""
        return self._coded("name", self._work)

    @property
    def categories(self) -> CodedValues:
        """Category of each event of work."""
        return self._coded("cat", self._work)

    def ids(self, mask: Mask) -> Ids:
        """Process and thread of these events of work."""
        return self._ids(self._work_rows(mask))

    def has_argument(self, side: SideTable, column: str, mask: Mask) -> Mask:
        """Mask of those of these events of work that have the argument behind this text column of the side table."""
        index = self._layout.arguments[side.readings[column]]
        is_value = np.array([*(value is not None for value in self._texts[index]), False])
        return np.asarray(mask & is_value[self._columns[index][self._work]])

    def arguments(self, side: SideTable, mask: Mask) -> list[ArgumentValues]:
        """For each column of the side table, its values in these events of work."""
        rows = self._work_rows(mask)
        return [self._argument(reading, self._layout.arguments[reading], rows) for reading in side.readings.values()]

    @property
    def memory_starts(self) -> DecimalTimes:
        """Time of each memory event."""
        return self._starts(self._memory)

    @property
    def memory_ids(self) -> Ids:
        """Process and thread of each memory event."""
        return self._ids(self._memory)

    def memory_arguments(self) -> list[NumberValues]:
        """For each column of MEMORY_ARGUMENTS, its values in the memory events."""
        readings = MEMORY_ARGUMENTS.readings.values()
        return [self._columns[self._layout.arguments[reading]][self._memory] for reading in readings]

    @property
    def labels(self) -> list[Label]:
        """Names of threads."""
        pids, tids = self._ids(self._label)
        names = self._text_argument(self._layout.label, self._label, None)
        return [Label(pids[index], tids[index], names[index]) for index in range(len(self._label))]

    def _work_rows(self, mask: Mask) -> slice | Ints:
        if mask.all():
            return self._work
        return np.flatnonzero(mask) if isinstance(self._work, slice) else self._work[mask]

    def _field(self, field: str, rows: slice | Ints) -> Ints:
        return np.asarray(self._columns[self._layout.fields[field]][rows])

    def _starts(self, rows: slice | Ints) -> DecimalTimes:
        return DecimalTimes(self._field("start", rows), self._field("decimals", rows))

    def _coded(self, field: str, rows: slice | Ints) -> CodedValues:
        return CodedValues(self._field(field, rows), self._texts[self._layout.fields[field]])

    def _ids(self, rows: slice | Ints) -> Ids:
        return Ids(self._coded("pid", rows), self._coded("tid", rows))

    def _argument(self, reading: ArgumentReader, index: int, rows: slice | Ints) -> ArgumentValues:
        if index not in self._used:
            return None
        if reading.read is None:
            return self._text_argument(index, rows, b"" if reading.json else None).in_order()
        values = np.asarray(self._columns[index][rows])
        return values.view(np.float64) if reading.is_fraction else values

    def _text_argument(self, index: int, rows: slice | Ints, absent: bytes | None) -> CodedValues:
        return CodedValues(self._columns[index][rows], [*self._texts[index], absent])
