"""Read a Kineto trace in one streaming pass: blocks, chunks, events, columns, Run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpulab.deferred_signals import DeferredSignals
from gpulab.errors import TraceError
from gpulab.run import Gap, Run
from gpulab.trace.assembly import assemble_run
from gpulab.trace.columns.builder import ColumnBuilder, TraceTables
from gpulab.trace.columns.chunk_columns import ChunkColumns
from gpulab.trace.columns.object_columns import ObjectColumns
from gpulab.trace.columns.side_tables import COLLECTIVE_ARGUMENTS, SideTable
from gpulab.trace.reading.chunk_events import NO_HEADER, READ_EVERYTHING, Header, ReadOptions
from gpulab.trace.reading.chunks import ChunkPosition, ChunkReader, EventsStart, TextChunk, find_events
from gpulab.trace.reading.compiled import CompiledParser, uses_compiled_parser
from gpulab.trace.reading.damaged import read_damaged_chunk
from gpulab.trace.reading.decoder import parse_events, parse_last_chunk
from gpulab.trace.reading.header import merge_headers, parse_header_after, parse_header_around
from gpulab.trace.reading.limits import (
    COMPRESSION_RATIO,
    EVENT_LIMIT,
    METADATA,
    MIB,
    TOO_MUCH_DAMAGE,
    UNREADABLE,
    Limits,
    Losses,
)
from gpulab.trace.reading.text_blocks import FIX, Progress, file_label, read_blocks

_CHEAP_BYTES = 64 * MIB  # of text
_REMEMBERED_CHUNKS = 8
_SHAPES_SKIPPED = Gap(
    what="the inputs of operators (shapes and types)",
    why="they are recorded, but were not read: the file is large and they take a fifth of the reading time",
    fix="gpulab.load(path, shapes=True)",
)
_Parsed = tuple[ChunkColumns, Header | None]
_Parser = Callable[[TextChunk, ReadOptions, bool], _Parsed | None]
TraceSource = str | os.PathLike[str] | bytes


def read(
    source: TraceSource,
    *,
    name: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    shapes: bool | None = None,
) -> Run:
    """Read a trace of torch.profiler, of any version since 1.8, as a Run with times exact to the nanosecond.

    A damaged trace gives a partial run; `run.recording.lost` counts the losses by cause. Raises TraceError if the
    source is not a trace. `progress` is called about once per megabyte of text with the number of bytes of the file
    read since the previous call. `shapes`: whether to read the inputs of operators, if they were recorded, which takes
    a fifth of the time. By default they are read from small files only; otherwise the run has a gap.
    """
    origin = source if isinstance(source, bytes) else Path(source)
    reader = _Reader(origin, limits or Limits(), progress, _is_small(origin) if shapes is None else shapes)
    tables, head = reader.run()
    run = assemble_run(name or _default_name(origin), tables, head, reader.losses)
    if shapes is None and reader.left_shapes:
        recording = replace(run.recording, left_out=(*run.recording.left_out, _SHAPES_SKIPPED))
        run = replace(run, recording=recording)
    return run


def _is_small(origin: Path | bytes) -> bool:
    """Whether the file is small enough to read shapes by default; True if there is no such file."""
    if isinstance(origin, bytes):
        return True
    with DeferredSignals(again=True):  # the TimeoutError of a signal handler is an OSError
        try:
            size = origin.stat().st_size
        except (OSError, ValueError):
            return True
    return size * (COMPRESSION_RATIO if origin.suffix == ".gz" else 1) < _CHEAP_BYTES


class _Added(NamedTuple):
    """A chunk was added; the metadata if it was the last one."""

    header: Header | None


class _Reader:
    """One pass over a file."""

    def __init__(self, origin: Path | bytes, limits: Limits, progress: Progress | None, shapes: bool) -> None:
        self._origin, self._limits, self._progress = origin, limits, progress
        self._columns = ColumnBuilder(shapes=shapes)
        self._first_bytes = 0 if shapes else _CHEAP_BYTES // 4  # of the text, which are searched for shapes
        self.left_shapes = False  # the trace has shapes, and they were not read
        self._options = ReadOptions()
        self._latest_tables = deque([self._options.side_tables], maxlen=_REMEMBERED_CHUNKS)
        # After the first collective, each kernel may be one, whatever its name.
        self._lasting_tables: frozenset[SideTable] = frozenset()
        self._parsers: list[_Parser] = [CompiledParser().parse, _decode] if uses_compiled_parser() else [_decode]
        self.losses = Losses()

    def run(self) -> tuple[TraceTables, Header]:
        """All rows and the metadata. Raises TraceError if there are none."""
        # Closed at once, because an interrupt would keep the file open as long as its traceback exists.
        with closing(read_blocks(self._origin, self._limits, self.losses, self._progress)) as text:
            return self._read_events(text)

    def _read_events(self, text: Iterator[bytes]) -> tuple[TraceTables, Header]:
        start, header = self._start(text)
        chunks = ChunkReader(start.events, text, self._limits)
        rest = iter(chunks)
        for chunk in rest:
            if self._first_bytes > 0 and not self.left_shapes:
                self._first_bytes -= len(chunk.text)
                self.left_shapes = b'"Input Dims"' in bytes(chunk.text)
            after = self._add_chunk(chunk, start.is_array, chunks)
            if isinstance(after, Mapping):
                header = merge_headers(header, after)
                break
            if after is not None:
                header = merge_headers(header, self._metadata_after(after, start.is_array, rest))
                break
            if self._columns.row_count > self._limits.events:
                self.losses.add(EVENT_LIMIT)
                break
            if self.losses.lost[UNREADABLE] > self._limits.damaged:
                self.losses.add(TOO_MUCH_DAMAGE)
                break
        if self._columns.event_count == 0 and (start.is_array or self.losses.lost):
            raise self._no_events_error()
        return self._columns.finish(self.losses), header

    def _start(self, text: Iterator[bytes]) -> tuple[EventsStart, Header]:
        """Start of the events, and the metadata before it."""
        first = None
        with closing(find_events(text, self._limits)) as starts:  # not by a destructor, which drops exceptions
            for start in starts:
                if start.is_array:
                    return start, NO_HEADER
                if (header := parse_header_around(start.before, b"}")) is not None:
                    return start, header
                first = first or start
        if first is None:
            raise self._no_events_error()
        self.losses.add(METADATA)
        return first, NO_HEADER

    def _add_chunk(self, chunk: TextChunk, is_array: bool, chunks: ChunkReader) -> Header | bytes | None:
        """Add a chunk's events; at the end of the events, return the metadata or the text after them."""
        for parse in self._parsers:
            if (added := self._add_parsed(parse, chunk, is_array)) is not None:
                return added.header
        salvaged = read_damaged_chunk(bytes(chunk.text), chunks.key, chunk.position, self.losses)
        self._columns.add(ObjectColumns(salvaged.batch), READ_EVERYTHING)
        if salvaged.rest:
            chunks.give_back(salvaged.rest)
        return salvaged.after

    def _add_parsed(self, parse: _Parser, chunk: TextChunk, is_array: bool) -> _Added | None:
        """Add a chunk's events with this parser; None if it cannot read the chunk, and nothing was added."""
        # Read the arguments that the latest chunks had, or none after a chunk without any: events of a kind come in
        # sequences, and the JSON parser compares each key with those of all arguments that it looks for.
        usual = self._lasting_tables.union(*self._latest_tables)
        options = self._options._replace(side_tables=usual if self._latest_tables[-1] else frozenset())
        while (read := parse(chunk, options, is_array)) is not None or options.known_categories_only:
            if read is None:
                options = options._replace(known_categories_only=False)  # it may contain an unknown category
                continue
            columns, header = read
            needed = self._columns.add(columns, options)
            if needed == options:
                self._options = options  # later chunks need the same
                self._latest_tables.append(self._columns.latest_tables)
                self._lasting_tables |= self._columns.latest_tables & {COLLECTIVE_ARGUMENTS}
                return _Added(header)
            options = needed._replace(side_tables=needed.side_tables | usual)
        return None

    def _metadata_after(self, after: bytes, is_array: bool, rest: Iterator[TextChunk]) -> Header:
        """The metadata after the events, collected up to the limit."""
        for chunk in rest:
            after = b"".join((after, b",", chunk.text))
            if len(after) > self._limits.event_bytes:
                self.losses.add(METADATA)
                return NO_HEADER
        return parse_header_after(after, is_array, self.losses)

    def _no_events_error(self) -> TraceError:
        lost = ", ".join(f"{cause} ({count})" for cause, count in self.losses.lost.items())
        why = "it has no readable events" + (f": {lost}" if lost else '; no "traceEvents" was found')
        return TraceError(f"{file_label(self._origin)} is not a PyTorch profiler trace.", why=why, fix=FIX)


def _decode(chunk: TextChunk, options: ReadOptions, is_array: bool) -> _Parsed | None:
    """Events of a chunk, and the metadata if it is the last one; None if anything is not as expected."""
    if chunk.position is ChunkPosition.LAST:
        ending = parse_last_chunk(chunk.text, options, is_array)
        return None if ending is None else (ObjectColumns(ending[0]), ending[1])
    batch = parse_events(chunk.array, options)
    return None if batch is None else (ObjectColumns(batch), None)


def _default_name(origin: Path | bytes) -> str:
    if isinstance(origin, bytes):
        return "trace"
    return origin.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace") or origin.name
