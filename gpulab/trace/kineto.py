"""One streaming pass over a Kineto trace: blocks -> pieces -> events -> columns -> a Run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gpulab.errors import TraceError
from gpulab.run import Gap, Run
from gpulab.trace.assembly import as_run
from gpulab.trace.columns.columns import Columns, Found
from gpulab.trace.reading.batches import CLOSEST, NO_HEADER, Batch, Header, How
from gpulab.trace.reading.damaged import salvage
from gpulab.trace.reading.decoder import parse_ending, parse_events
from gpulab.trace.reading.header import header_after, header_around, joined
from gpulab.trace.reading.limits import EVENT_LIMIT, GIVEN_UP, METADATA, MIB, UNREADABLE, Limits, Losses
from gpulab.trace.reading.pieces import Piece, Pieces, Place, Start, find_events
from gpulab.trace.reading.text_blocks import FIX, Progress, blocks, label

_CHEAP_BYTES = 64 * MIB  # of text
_PACKED = 16  # times as much text as there is file; traces compress 9 to 30 times
_SHAPES_LEFT = Gap(
    what="the inputs of operators (shapes and types)",
    why="they were recorded, and not read, as the file is large and they take a fifth of the time",
    fix="gpulab.load(path, shapes=True)",
)
Origin = str | os.PathLike[str] | bytes


def read(
    source: Origin,
    *,
    name: str | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    shapes: bool | None = None,
) -> Run:
    """A trace that torch.profiler wrote, of any version since 1.8, as a Run with times exact to the nanosecond.

    A damaged trace gives what can be read of it; `run.recording.lost` counts the rest by cause. Raises TraceError
    where there is no trace to read. `progress` is called about once a megabyte of text with the number of bytes of the
    file read since. The inputs of operators, where they were recorded, take a fifth of the time: `shapes` says whether
    to read them. By default that is done where the file is not large; else the run says what it lacks.
    """
    origin = source if isinstance(source, bytes) else Path(source)
    reader = _Reader(origin, limits or Limits(), progress, _are_cheap(origin) if shapes is None else shapes)
    found, head = reader.run()
    run = as_run(name or _name(origin), found, head, reader.losses)
    if shapes is None and reader.left_shapes:
        recording = replace(run.recording, left_out=(*run.recording.left_out, _SHAPES_LEFT))
        run = replace(run, recording=recording)
    return run


def _are_cheap(origin: Path | bytes) -> bool:
    """Whether the file is small enough for its shapes to be read unasked; also where it turns out to be none."""
    if isinstance(origin, bytes):
        return True
    try:
        size = origin.stat().st_size
    except (OSError, ValueError):
        return True
    return size * (_PACKED if origin.suffix == ".gz" else 1) < _CHEAP_BYTES


class _Reader:
    """One pass over one file."""

    def __init__(self, origin: Path | bytes, limits: Limits, progress: Progress | None, shapes: bool) -> None:
        self._origin, self._limits, self._progress = origin, limits, progress
        self._columns = Columns(shapes=shapes)
        self._first_bytes = 0 if shapes else _CHEAP_BYTES // 4  # so much of the text is still looked through for shapes
        self.left_shapes = False  # there are some, and they were not read
        self._how = How()
        self.losses = Losses()

    def run(self) -> tuple[Found, Header]:
        """All rows and the metadata. Raises TraceError where there are none."""
        # Closed at once: an interrupt would keep the file open for as long as its traceback is kept.
        with closing(blocks(self._origin, self._limits, self.losses, self._progress)) as text:
            return self._all(text)

    def _all(self, text: Iterator[bytes]) -> tuple[Found, Header]:
        start, head = self._start(text)
        pieces = Pieces(start.events, text, self._limits)
        rest = iter(pieces)
        for piece in rest:
            if self._first_bytes > 0 and not self.left_shapes:
                self._first_bytes -= len(piece.text)
                self.left_shapes = b'"Input Dims"' in bytes(piece.text)
            after = self._take(piece, start.bare, pieces)
            if isinstance(after, Mapping):
                head = joined(head, after)
                break
            if after is not None:
                head = joined(head, self._metadata_after(after, start.bare, rest))
                break
            if self._columns.count > self._limits.events:
                self.losses.add(EVENT_LIMIT)
                break
            if self.losses.lost[UNREADABLE] > self._limits.damaged:
                self.losses.add(GIVEN_UP)
                break
        if self._columns.seen == 0 and (start.bare or self.losses.lost):
            raise self._nothing()
        return self._columns.finish(self.losses), head

    def _start(self, text: Iterator[bytes]) -> tuple[Start, Header]:
        """Where the events begin, and the metadata before them."""
        first = None
        for start in find_events(text, self._limits):
            if start.bare:
                return start, NO_HEADER
            if (head := header_around(start.before, b"}")) is not None:
                return start, head
            first = first or start
        if first is None:
            raise self._nothing()
        self.losses.add(METADATA)
        return first, NO_HEADER

    def _take(self, piece: Piece, bare: bool, pieces: Pieces) -> Header | bytes | None:
        """Add a piece's events; the metadata or the text after them once the events have ended."""
        # Arguments are wanted of this piece if they were of the last: events of a kind stand together.
        how = self._how if self._columns.asks else self._how._replace(sides=frozenset())
        while (read := _read(piece, how, bare)) is not None or how.known:
            if read is None:
                how = how._replace(known=False)  # it may hold a category that gpulab does not know
                continue
            batch, after = read
            needed = self._columns.add(batch, how)
            if needed == how:
                self._how = how._replace(sides=how.sides | self._how.sides)  # what one piece needs all are likely to
                return after
            how = needed._replace(sides=needed.sides | self._how.sides)
        salvaged = salvage(bytes(piece.text), pieces.key, piece.place, self.losses)
        self._columns.add(salvaged.batch, CLOSEST)
        if salvaged.rest:
            pieces.give_back(salvaged.rest)
        return salvaged.after

    def _metadata_after(self, after: bytes, bare: bool, rest: Iterator[Piece]) -> Header:
        """The metadata that follow the events, gathered up to the limit."""
        for piece in rest:
            after = b"".join((after, b",", piece.text))
            if len(after) > self._limits.event_bytes:
                self.losses.add(METADATA)
                return NO_HEADER
        return header_after(after, bare, self.losses)

    def _nothing(self) -> TraceError:
        lost = ", ".join(f"{cause} ({count})" for cause, count in self.losses.lost.items())
        why = "it holds no events that can be read" + (f": {lost}" if lost else '; no "traceEvents" was found')
        return TraceError(f"{label(self._origin)} is not a PyTorch profiler trace.", why=why, fix=FIX)


def _read(piece: Piece, how: How, bare: bool) -> tuple[Batch, Header | None] | None:
    """The events of a piece, and the metadata if it is the last; None if anything about it is not as expected."""
    if piece.place is Place.LAST:
        return parse_ending(piece.text, how, bare)
    batch = parse_events(piece.array, how)
    return None if batch is None else (batch, None)


def _name(origin: Path | bytes) -> str:
    if isinstance(origin, bytes):
        return "trace"
    return origin.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace") or origin.name
