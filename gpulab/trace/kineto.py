"""One streaming pass over a Kineto trace: blocks -> pieces -> events -> columns -> a Run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpulab.errors import TraceError
from gpulab.run import Run
from gpulab.trace.assembly import as_run
from gpulab.trace.blocks import FIX, blocks, label
from gpulab.trace.columns import Columns, Found
from gpulab.trace.cut import Pieces, Place, Start, find_events
from gpulab.trace.decode import damaged, ending, header, inner, metadata_after
from gpulab.trace.events import Header
from gpulab.trace.limits import EVENT_LIMIT, GIVEN_UP, METADATA, UNREADABLE, Limits, Losses

Origin = str | os.PathLike[str] | bytes


def read(source: Origin, *, name: str | None = None, limits: Limits | None = None) -> Run:
    """A trace that torch.profiler wrote, of any version since 1.8, as a Run with times exact to the nanosecond.

    A damaged trace gives what can be read of it; `run.recording.lost` counts the rest by cause. Raises TraceError
    where there is no trace to read.
    """
    origin = source if isinstance(source, bytes) else Path(source)
    reader = _Reader(origin, limits or Limits())
    found, head = reader.run()
    return as_run(name or _name(origin), found, head, reader.losses)


class _Reader:
    """One pass over one file."""

    def __init__(self, origin: Path | bytes, limits: Limits) -> None:
        self._origin, self._limits = origin, limits
        self._columns = Columns()
        self._exact = False
        self.losses = Losses()

    def run(self) -> tuple[Found, Header]:
        """All rows and the metadata. Raises TraceError where there are none."""
        text = blocks(self._origin, self._limits, self.losses)
        start, head = self._start(text)
        pieces = Pieces(start.events, text, self._limits)
        rest = iter(pieces)
        for piece, place in rest:
            after = self._take(piece, place, start.bare, pieces)
            if isinstance(after, Header):
                head = _joined(head, after)
                break
            if after is not None:
                head = _joined(head, self._metadata_after(after, start.bare, rest))
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
                return start, Header()
            if (head := header(start.before, b"}")) is not None:
                return start, head
            first = first or start
        if first is None:
            raise self._nothing()
        self.losses.add(METADATA)
        return first, Header()

    def _take(self, piece: bytes | memoryview, place: Place, bare: bool, pieces: Pieces) -> Header | bytes | None:
        """Add a piece's events; the metadata or the text after them once the events have ended."""
        for exact in (True,) if self._exact else (False, True):
            if place is Place.LAST:
                events, after = ending(piece, exact, bare) or (None, None)
            else:
                events, after = inner(piece, exact), None
            if events is None:
                break
            if self._columns.add(events, exact=exact):
                self._exact = exact  # one piece with times beyond float64 means that all have
                return after
        read = damaged(bytes(piece), pieces.key, place, self.losses)
        self._columns.add(read.events, exact=True)
        if read.rest:
            pieces.give_back(read.rest)
        return read.after

    def _metadata_after(self, after: bytes, bare: bool, rest: Iterator[tuple[bytes | memoryview, Place]]) -> Header:
        """The metadata that follow the events, gathered up to the limit."""
        for piece, _ in rest:
            after = b"".join((after, b",", piece))
            if len(after) > self._limits.event_bytes:
                self.losses.add(METADATA)
                return Header()
        return metadata_after(after, bare, self.losses)

    def _nothing(self) -> TraceError:
        lost = ", ".join(f"{cause} ({count})" for cause, count in self.losses.lost.items())
        why = "it holds no events that can be read" + (f": {lost}" if lost else '; no "traceEvents" was found')
        return TraceError(f"{label(self._origin)} is not a PyTorch profiler trace.", why=why, fix=FIX)


def _joined(one: Header, other: Header) -> Header:
    """The metadata before and after the events; where both tell, the later counts."""
    joined = Header()
    for field in Header.__struct_fields__:
        told = getattr(other, field)
        setattr(joined, field, getattr(one, field) if told is None else told)
    joined.traceEvents = None
    return joined


def _name(origin: Path | bytes) -> str:
    if isinstance(origin, bytes):
        return "trace"
    return origin.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace") or origin.name
