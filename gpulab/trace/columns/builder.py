"""Convert batches of events to the columns of the tables: typed arrays, joined and sorted once at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.tables import EVENTS, EventKind
from gpulab.trace.columns.categories import EventFamily, event_family, kind_of
from gpulab.trace.columns.chunk_columns import ChunkColumns, Ids
from gpulab.trace.columns.growing_array import GrowingArray
from gpulab.trace.columns.memory_events import MemoryEvents
from gpulab.trace.columns.row_times import time_order, usable_times
from gpulab.trace.columns.side_tables import (
    CALL_ARGUMENTS,
    COLLECTIVE_ARGUMENTS,
    DEVICE_WORK_ARGUMENTS,
    KERNEL_ARGUMENTS,
    OPERATOR_ARGUMENTS,
    SIDE_TABLES_OF_WORK,
    WAIT_ARGUMENTS,
    SideTable,
    SideTableBuilder,
)
from gpulab.trace.columns.time_values import Times
from gpulab.trace.columns.times import UNPADDED
from gpulab.trace.columns.vocabulary import Vocabulary, as_text, encodable_name
from gpulab.trace.reading.chunk_events import ReadOptions
from gpulab.trace.reading.limits import Losses

Part = dict[str, NDArray[Any]]  # the columns of the rows of one chunk

_COLLECTIVE_OPERATOR = "record_param_comms"  # the operator with which PyTorch records a collective
_TAKES_INPUTS = np.array(
    [family in (EventFamily.OP, EventFamily.MIXED, EventFamily.ANNOTATION) for family in range(12)]
)
# Columns of every event; name and family become words and kinds at the end.
_DTYPES = {"start_ns": np.int64, "dur_ns": np.int64, "thread": np.int32, "name": np.int32, "family": np.int8}


class TraceTables(NamedTuple):
    """All rows in order of time, and what the columns need besides."""

    rows: Rows
    grids: Rows
    shapes: Rows
    collectives: Rows
    waits: Rows
    memory: Rows
    zero_ns: int  # the earliest start, on the trace's clock
    span_ns: int
    threads: tuple[str, ...]
    unknown: dict[str, int]  # events of categories gpulab does not know


class ColumnBuilder:
    """Grows with every chunk; keeps only numbers and distinct names of the events."""

    def __init__(self, *, shapes: bool = True) -> None:
        self._categories, self._names, self._threads = Vocabulary(), Vocabulary(), Vocabulary()
        self._families: list[int] = []
        self._columns = {name: GrowingArray(np.dtype(dtype)) for name, dtype in _DTYPES.items()}
        self._sides = {side: SideTableBuilder(side) for side in SIDE_TABLES_OF_WORK}
        self._communicating: list[int] = []  # codes of names of collectives
        self._memory = MemoryEvents()
        self._labels: dict[tuple[str, str], str] = {}
        self._unknown: Counter[str] = Counter()
        self._shapes = shapes
        self._unpadded: bool | None = None
        self.latest_tables: frozenset[SideTable] = frozenset()  # the side tables that the last chunk may have rows of
        self.row_count = 0  # rows so far
        self.event_count = 0  # events with a duration so far, with or without a row

    def add(self, chunk: ChunkColumns, options: ReadOptions) -> ReadOptions:
        """Add the events of a chunk that was read with these options.

        If the options were not sufficient, nothing is added, and the result says how to read the chunk again.
        """
        start, dur = self._nanoseconds(chunk.starts, options), self._nanoseconds(chunk.durs, options)
        at = self._nanoseconds(chunk.memory_starts, options)
        if start is None or dur is None or at is None:
            return options._replace(exact_times=True)
        categories = chunk.categories.codes_in(self._categories)
        families = self._families_of(categories)
        names = self._codes_of_names(chunk)
        masks = self._masks(families, names, options)
        self.latest_tables = frozenset(masks)
        needed = options._replace(side_tables=options.side_tables.union(masks))
        if needed == options:
            self._count_unknown(categories[families == EventFamily.UNKNOWN])
            self._add_metadata(chunk, at)
            rows = self._append(chunk, families, {"start_ns": start, "dur_ns": dur, "name": names, "family": families})
            self._gather(chunk, masks, rows)
        return needed

    def _nanoseconds(self, times: Times, options: ReadOptions) -> Ints | None:
        if not options.exact_times:
            return times.rounded_ns()
        if self._unpadded is None:  # the starts of the first chunk decide for all
            self._unpadded = times.are_unpadded()
        return times.exact_ns(unpadded=self._unpadded)

    def _families_of(self, categories: NDArray[np.int32]) -> NDArray[np.int8]:
        for category in self._categories.since(len(self._families)):
            self._families.append(event_family(as_text(category)))
        return np.array(self._families, np.int8)[categories]

    def _codes_of_names(self, chunk: ChunkColumns) -> NDArray[np.int32]:
        count = len(self._names)
        codes = chunk.names.codes_in(self._names)
        for code, name in enumerate(self._names.since(count), count):
            if name == _COLLECTIVE_OPERATOR or kind_of(EventFamily.KERNEL, as_text(name)) is EventKind.COLLECTIVE:
                self._communicating.append(code)
        return codes

    def _masks(
        self, families: NDArray[np.int8], names: NDArray[np.int32], options: ReadOptions
    ) -> dict[SideTable, NDArray[np.bool_]]:
        """For each side table, the events that may have its arguments; side tables without any are left out."""
        kernels = families == EventFamily.KERNEL
        masks = {
            CALL_ARGUMENTS: families == EventFamily.RUNTIME,
            DEVICE_WORK_ARGUMENTS: families >= EventFamily.SYNC_RECORD,
            KERNEL_ARGUMENTS: kernels,
            WAIT_ARGUMENTS: families == EventFamily.SYNC_RECORD,
        }
        if self._shapes:
            masks[OPERATOR_ARGUMENTS] = _TAKES_INPUTS[families]
        is_communicating = np.zeros(len(self._names), bool)
        is_communicating[self._communicating] = True
        is_communication = is_communicating[names]
        if is_communication.any() or COLLECTIVE_ARGUMENTS in options.side_tables:  # then every kernel may be one
            masks[COLLECTIVE_ARGUMENTS] = kernels | (is_communication & (families > EventFamily.DROPPED))
        return {side: mask for side, mask in masks.items() if mask.any()}

    def _count_unknown(self, categories: NDArray[np.int32]) -> None:
        vocabulary = self._categories.since(0) if len(categories) else []
        for code, count in Counter(categories.tolist()).items():
            self._unknown[as_text(vocabulary[code])[:100]] += count

    def _add_metadata(self, chunk: ChunkColumns, at_ns: Ints) -> None:
        """Add thread names and memory events."""
        for label in chunk.labels:
            self._labels[as_text(label.pid), as_text(label.tid)] = as_text(label.name).strip()
        if len(at_ns):
            self._memory.add(chunk.memory_arguments(), at_ns, self._threads_of(chunk.memory_ids))

    def _append(self, chunk: ChunkColumns, families: NDArray[np.int8], part: Part) -> Ints:
        """Add the columns of every event; return the row of each."""
        self.event_count += len(families)
        has_row = families > EventFamily.DROPPED
        host = has_row & (families < EventFamily.SYNC_RECORD)
        part["thread"] = np.full(len(families), -1, np.int32)
        if host.any():
            part["thread"][host] = self._threads_of(chunk.ids(host))
        all_have_rows = bool(has_row.all())
        for name, values in part.items():
            self._columns[name].append(values if all_have_rows else values[has_row])
        rows: Ints = np.arange(len(families)) if all_have_rows else np.cumsum(has_row) - 1
        rows += self.row_count
        self.row_count += len(families) if all_have_rows else int(has_row.sum())
        return rows

    def _gather(self, chunk: ChunkColumns, masks: Mapping[SideTable, NDArray[np.bool_]], rows: Ints) -> None:
        """Add the arguments of these events to the side tables; `rows` are their row numbers."""
        for side, mask in masks.items():
            present = chunk.has_argument(side, side.required_column, mask) if side.required_column else mask
            if present.any():
                self._sides[side].add(rows[present], chunk.arguments(side, present))

    def _threads_of(self, ids: Ids) -> NDArray[np.int32]:
        pids, tids = ids
        try:
            begins = _changes(pids.as_numbers(), tids.as_numbers())
        except (ValueError, TypeError, OverflowError):  # words, or huge numbers
            begins = np.arange(len(pids))
        # Events of one thread come in long sequences: one lookup per sequence.
        pairs = [(pids[index], tids[index]) for index in begins.tolist()]
        try:
            codes = self._threads.codes(pairs, len(pairs))
        except TypeError:  # a list or an object in place of a number
            codes = self._threads.codes([(as_text(pid), as_text(tid)) for pid, tid in pairs], len(pairs))
        return np.repeat(codes, np.diff(np.append(begins, len(pids))))

    def finish(self, losses: Losses) -> TraceTables:
        """All rows, relative to the earliest; rows without a usable time are left out and counted."""
        joined = {name: column.take_all() for name, column in self._columns.items()}
        losses.repairs |= {UNPADDED} if self._unpadded else set()
        usable = usable_times(joined["start_ns"], joined["dur_ns"], losses)
        order = time_order(joined["start_ns"], joined["dur_ns"])
        order = order if usable.all() else order[usable[order]]
        for name in joined:
            joined[name] = joined[name][order]
        position = np.full(self.row_count, -1, np.int32)
        position[order] = np.arange(len(order), dtype=np.int32)
        tables = (KERNEL_ARGUMENTS, OPERATOR_ARGUMENTS, COLLECTIVE_ARGUMENTS, WAIT_ARGUMENTS)
        sides = {side.table.name: self._sides[side].rows(position) for side in tables}
        for side in (CALL_ARGUMENTS, DEVICE_WORK_ARGUMENTS):
            self._sides[side].write_into(joined, position, len(order))
        del order, position
        start, dur = joined["start_ns"], joined["dur_ns"]
        zero = int(start[0]) if len(start) else 0
        start -= zero
        threads, codes = self._thread_names()
        columns: dict[str, Any] = {name: joined[name] for name in joined if name != "family"}
        columns["thread"] = codes[columns["thread"]]
        columns["kind"] = self._kinds(joined["family"], joined["name"], sides[COLLECTIVE_ARGUMENTS.table.name])
        columns["name"] = self._names.text_column(joined["name"])
        span = int((start + dur).max(initial=0))
        memory = self._memory.rows(zero, codes, losses)
        return TraceTables(
            EVENTS.rows(columns),
            **sides,
            memory=memory,
            zero_ns=zero,
            span_ns=span,
            threads=threads,
            unknown=dict(self._unknown),
        )

    def _kinds(self, families: NDArray[Any], names: NDArray[Any], collectives: Rows) -> NDArray[np.int8]:
        """Kinds of all rows, computed once per distinct pair of family and name."""
        vocabulary = self._names.texts()
        pairs = families.astype(np.int64) * max(1, len(vocabulary)) + names
        present = np.flatnonzero(np.bincount(pairs)) if len(pairs) else pairs
        kind_of_pair: NDArray[np.int8] = np.empty(int(present[-1]) + 1 if len(present) else 0, np.int8)
        for pair in present.tolist():
            family, name = divmod(pair, len(vocabulary))
            kind_of_pair[pair] = kind_of(family, vocabulary[name])
        kinds = np.asarray(kind_of_pair[pairs], np.int8)
        # Only communication has arguments about messages and groups, whatever the name of the kernel.
        events = collectives["event"]
        kinds[events[families[events] == EventFamily.KERNEL]] = EventKind.COLLECTIVE
        return kinds

    def _thread_names(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Names of the host threads, and the final code of each recorded pair of ids (the last one: no thread)."""
        unique: dict[tuple[str, str], int] = {}
        codes = [unique.setdefault((as_text(pid), as_text(tid)), len(unique)) for pid, tid in self._threads.since(0)]
        names = [self._labels.get(key) or ("profiler" if key[0] == "-1" else f"thread {key[1]}") for key in unique]
        times = Counter(names)
        unique_names = (
            f"{name} of process {pid}" if times[name] > 1 else name
            for name, (pid, _) in zip(names, unique, strict=True)
        )
        return tuple(map(encodable_name, unique_names)), np.array([*codes, -1], np.int32)


def _changes(first: Ints, second: Ints) -> Ints:
    """Indices at which a value of either array differs from the one before."""
    if not len(first):
        return np.arange(0)
    return np.append(0, np.flatnonzero((first[1:] != first[:-1]) | (second[1:] != second[:-1])) + 1)
