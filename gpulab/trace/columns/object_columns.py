"""The columns of a chunk whose events are objects, from msgspec or from the reader of damaged chunks."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from gpulab.trace.columns.arguments import Values as NumberValues
from gpulab.trace.columns.chunk_columns import Ids, Label
from gpulab.trace.columns.side_tables import MEMORY_ARGUMENTS, ArgumentValues, SideTable
from gpulab.trace.columns.time_values import NumberTimes
from gpulab.trace.columns.values import ListedValues, Mask, select
from gpulab.trace.reading.chunk_events import Batch


class ObjectColumns:
    """Collects each column from the objects when it is used."""

    def __init__(self, batch: Batch) -> None:
        self._work, self._memory = batch.work, batch.memory
        self.labels = [Label(label.pid, label.tid, label.args.name) for label in batch.labels]

    # A comprehension is faster than `attrgetter` for a fixed field.

    @property
    def starts(self) -> NumberTimes:
        """Start of each event of work."""
        return NumberTimes([event.ts for event in self._work])

    @property
    def durs(self) -> NumberTimes:
        """Duration of each event of work."""
        return NumberTimes([event.dur for event in self._work])

    @property
    def names(self) -> ListedValues:
        """Name of each event of work."""
        return ListedValues([event.name for event in self._work])

    @property
    def categories(self) -> ListedValues:
        """Category of each event of work."""
        return ListedValues([event.cat for event in self._work])

    def ids(self, mask: Mask) -> Ids:
        """Process and thread of these events of work."""
        return _ids(select(self._work, mask))

    def has_argument(self, side: SideTable, column: str, mask: Mask) -> Mask:
        """Mask of those of these events of work that have the argument behind this text column of the side table."""
        marks = map(attrgetter(f"args.{column}"), select(self._work, mask))
        result = mask.copy()
        result[mask] = [mark is not None for mark in marks]
        return result

    def arguments(self, side: SideTable, mask: Mask) -> list[ArgumentValues]:
        """For each column of the side table, its values in these events of work."""
        return _arguments(select(self._work, mask), side)

    @property
    def memory_starts(self) -> NumberTimes:
        """Time of each memory event."""
        return NumberTimes([event.ts for event in self._memory])

    @property
    def memory_ids(self) -> Ids:
        """Process and thread of each memory event."""
        return _ids(self._memory)

    def memory_arguments(self) -> list[NumberValues]:
        """For each column of MEMORY_ARGUMENTS, its values in the memory events."""
        args = [event.args for event in self._memory]
        return [list(map(attrgetter(column), args)) for column in MEMORY_ARGUMENTS.readings]


def _ids(events: Sequence[Any]) -> Ids:
    return Ids(ListedValues([event.pid for event in events]), ListedValues([event.tid for event in events]))


def _arguments(events: Sequence[Any], side: SideTable) -> list[ArgumentValues]:
    """For each column one value per event: -1, None or b"" if an event has no such argument."""
    args = [event.args for event in events]
    columns: list[ArgumentValues] = []
    for column, reading in side.readings.items():
        values = list(map(attrgetter(column), args))
        if reading.read is None:
            columns.append(ListedValues(_json_texts(values) if reading.json else values))
        else:
            columns.append(values)
    return columns


def _json_texts(values: Sequence[Any]) -> list[bytes]:
    """The text of raw JSON values. Joining and splitting them is faster than converting each of them."""
    texts = b"\0".join(values).split(b"\0")
    return texts if len(texts) == len(values) else list(map(bytes, values))
