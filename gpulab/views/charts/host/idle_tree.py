"""The idle time of the device taken apart: by part of the ledger, then by operator and thread, then by line.

The parts are the ledger's, and the operators of a part sum to it exactly, in whole ns. Lines do not: of each operator
the one line is told that held most of it, as far as Python frames were recorded or sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.host.frames import Frame, frame_of
from gpulab.analysis.steps.ledger import HOST_KINDS, Ledger, Part, host_threads
from gpulab.intervals import Coverage, Ints, Spans, intersect, merged, subtract, union
from gpulab.rows import Array
from gpulab.run import Run
from gpulab.tables import Kind

LEAST_FRAC = 0.01  # of all idle time: less is told together with its like
LEAST_HELD, MOST_HELD = 2, 12  # operators of one part that are told apart
UNTOLD = -1  # a code for time inside nothing that was recorded

_HOLDERS = (Kind.OP, Kind.ANNOTATION, Kind.LOADER)


@dataclass(frozen=True, eq=False)
class Held:
    """Idle time of one part inside one operator of one thread; no name: inside none, or many small ones together."""

    name: str | None
    thread: int
    ns: int
    frame: Frame | None = None  # the line of the user's that held most of it
    others: int = 0  # how many small ones it stands for


@dataclass(frozen=True, eq=False)
class Blamed:
    """One part of the ledger and who held it, most first; they sum to it exactly."""

    part: Part
    ns: int
    held: tuple[Held, ...]


def blamed(run: Run, accounts: Ledger) -> tuple[Blamed, ...]:
    """Each part of the idle time that took any, most first."""
    idle = [(part, accounts.spans[part.key]) for part in accounts.parts if not part.busy]
    idle = sorted(((part, spans) for part, spans in idle if spans.total_ns), key=lambda each: -each[1].total_ns)
    if not idle:
        return ()
    host = _Host(run, merged(*(spans for _, spans in idle)))
    least_ns = LEAST_FRAC * sum(spans.total_ns for _, spans in idle)
    return tuple(Blamed(part, spans.total_ns, tuple(_held(host, part, spans, least_ns))) for part, spans in idle)


class _Host:
    """What the launching threads did while the device was idle: the main one first."""

    def __init__(self, run: Run, idle: Spans) -> None:
        events, self.run = run.event_rows, run
        threads = host_threads(run)
        self.threads = [run.main_thread, *(each for each in threads.tolist() if each != run.main_thread)]
        kinds = {*_HOLDERS, *HOST_KINDS.values()}
        wanted = np.isin(events["kind"], [int(kind) for kind in kinds]) & np.isin(events["thread"], threads)
        mine = np.flatnonzero(wanted)
        start = events["start_ns"][mine]
        touched = Coverage.of(idle).within(start, start + events["dur_ns"][mine]) > 0
        self.rows = events.where(mine[touched])
        self._inner: dict[int, tuple[Spans, Array]] = {}

    def inner(self, thread: int) -> tuple[Spans, Array]:
        """For every instant inside an operator of a thread, the innermost: when, and a code of the run's names."""
        if thread not in self._inner:
            rows = self.rows.where(self.rows["thread"] == thread).of_kind(*_HOLDERS)
            own = innermost(rows)
            order = np.argsort(own.start_ns, kind="stable")
            self._inner[thread] = Spans(own.start_ns[order], own.end_ns[order]), rows["name"][own.row[order]]
        return self._inner[thread]


def _held(host: _Host, part: Part, spans: Spans, least_ns: float) -> Iterator[Held]:
    pieces = [(thread, *each) for thread, mine in _by_thread(host, part, spans) for each in _named(host, thread, mine)]
    pieces.sort(key=lambda each: -each[2])
    words = host.run.event_rows.words("name").vocabulary
    shown = [each for at, each in enumerate(pieces[:MOST_HELD]) if each[2] >= least_ns or at < LEAST_HELD]
    if len(pieces) == len(shown) + 1:
        shown = pieces
    for thread, code, ns, own in shown:
        yield Held(words[code] if code != UNTOLD else None, thread, ns, frame_of(host.run, own))
    rest = pieces[len(shown) :]
    if rest:
        yield Held(None, host.run.main_thread, sum(ns for _, _, ns, _ in rest), others=len(rest))


def _by_thread(host: _Host, part: Part, spans: Spans) -> Iterator[tuple[int, Spans]]:
    """The time of a part, each instant with the first thread that was in a call of that kind."""
    left = spans
    if part.key in HOST_KINDS:
        calls = host.rows.of_kind(HOST_KINDS[part.key])
        for thread in host.threads:
            mine = intersect(left, calls.where(calls["thread"] == thread).spans())
            left = subtract(left, mine)
            if mine.total_ns:
                yield thread, mine
    if left.total_ns:
        yield host.run.main_thread, left


def _named(host: _Host, thread: int, spans: Spans) -> Iterator[tuple[int, int, Spans]]:
    """This time by the innermost operator of the thread: a code of the run's names, ns, and when."""
    inner, name = host.inner(thread)
    pieces = intersect(spans, inner)
    codes = name[np.searchsorted(inner.start_ns, pieces.start_ns, side="right") - 1] if len(name) else name
    for code, mine in _by_code(codes, pieces):
        yield code, mine.total_ns, mine
    outside = subtract(spans, union(pieces.start_ns, pieces.end_ns))
    if outside.total_ns:
        yield UNTOLD, outside.total_ns, outside


def _by_code(codes: Array, pieces: Spans) -> Iterator[tuple[int, Spans]]:
    """The pieces of each code, in order of time."""
    order = np.argsort(codes, kind="stable")
    cuts: Ints = np.flatnonzero(np.diff(codes[order])) + 1
    for mine in np.split(order, cuts) if len(order) else ():
        yield int(codes[mine[0]]), Spans(pieces.start_ns[mine], pieces.end_ns[mine])
