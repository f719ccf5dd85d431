"""The events of a chunk as columns: what every parser of chunks produces, and what ColumnBuilder adds to the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gpulab.trace.columns.arguments import Values as NumberValues
from gpulab.trace.columns.side_tables import ArgumentValues, SideTable
from gpulab.trace.columns.time_values import Times
from gpulab.trace.columns.values import Mask, Values


class Ids(NamedTuple):
    """The process and the thread of each event."""

    pids: Values
    tids: Values


class Label(NamedTuple):
    """The name of a thread."""

    pid: Any
    tid: Any
    name: Any


class ChunkColumns(Protocol):
    """The events of a chunk; their values are JSON values, and times are in us.

    Work are the events with a duration; memory events are allocations and frees.
    """

    @property
    def starts(self) -> Times:
        """Start of each event of work."""

    @property
    def durs(self) -> Times:
        """Duration of each event of work."""

    @property
    def names(self) -> Values:
        """Name of each event of work."""

    @property
    def categories(self) -> Values:
        """Category of each event of work."""

    def ids(self, mask: Mask) -> Ids:
        """Process and thread of these events of work."""

    def has_argument(self, side: SideTable, column: str, mask: Mask) -> Mask:
        """Mask of those of these events of work that have the argument behind this text column of the side table."""

    def arguments(self, side: SideTable, mask: Mask) -> list[ArgumentValues]:
        """For each column of the side table, its values in these events of work."""

    @property
    def memory_starts(self) -> Times:
        """Time of each memory event."""

    @property
    def memory_ids(self) -> Ids:
        """Process and thread of each memory event."""

    def memory_arguments(self) -> list[NumberValues]:
        """For each column of MEMORY_ARGUMENTS, its values in the memory events."""

    @property
    def labels(self) -> Sequence[Label]:
        """Names of threads."""
