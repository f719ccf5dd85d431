"""Idle device time split by ledger part, then by operator and thread, then by line.

The operators of a part sum to it exactly, in integer ns. Lines do not: each operator has only the line with most of its
time, if Python frames were recorded or sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.host.frames import Frame, deepest_frame
from gpulab.analysis.steps.ledger import HOST_KINDS, Ledger, Part, launching_threads
from gpulab.intervals import Coverage, Ints, Spans, intersect, subtract, union, union_of
from gpulab.rows import Array
from gpulab.run import Run
from gpulab.tables import EventKind

MIN_FRAC = 0.01  # of all idle time: smaller operators are summed
MIN_OPERATORS, MAX_OPERATORS = 2, 12  # operators listed per part
OUTSIDE = -1  # code for time outside recorded operators

_OPERATOR_KINDS = (EventKind.OP, EventKind.ANNOTATION, EventKind.LOADER)


@dataclass(frozen=True, eq=False)
class IdleOperator:
    """Idle time of one part inside one operator of one thread; no name: outside operators, or a sum of small ones."""

    name: str | None
    thread: int
    ns: int
    frame: Frame | None = None  # the user's line with most of the time
    others: int = 0  # number of small operators in this sum


@dataclass(frozen=True, eq=False)
class IdlePart:
    """One part of the ledger and its operators, longest first; they sum to the part exactly."""

    part: Part
    ns: int
    operators: tuple[IdleOperator, ...]


def idle_parts(run: Run, accounts: Ledger) -> tuple[IdlePart, ...]:
    """Return each non-empty part of the idle time, longest first."""
    idle = [(part, accounts.spans[part.key]) for part in accounts.parts if not part.busy]
    idle = sorted(((part, spans) for part, spans in idle if spans.total_ns), key=lambda pair: -pair[1].total_ns)
    if not idle:
        return ()
    host = _Host(run, union_of(*(spans for _, spans in idle)))
    min_ns = MIN_FRAC * sum(spans.total_ns for _, spans in idle)
    return tuple(IdlePart(part, spans.total_ns, tuple(_operators(host, part, spans, min_ns))) for part, spans in idle)


class _Host:
    """Operators of the launching threads while the device was idle, main thread first."""

    def __init__(self, run: Run, idle: Spans) -> None:
        events, self.run = run.event_rows, run
        threads = launching_threads(run)
        self.threads = [run.main_thread, *(each for each in threads.tolist() if each != run.main_thread)]
        kinds = {*_OPERATOR_KINDS, *HOST_KINDS.values()}
        selected = np.isin(events["kind"], [int(kind) for kind in kinds]) & np.isin(events["thread"], threads)
        indices = np.flatnonzero(selected)
        start = events["start_ns"][indices]
        overlaps_idle = Coverage.of(idle).covered_ns(start, start + events["dur_ns"][indices]) > 0
        self.rows = events.select(indices[overlaps_idle])
        self._inner: dict[int, tuple[Spans, Array]] = {}

    def inner(self, thread: int) -> tuple[Spans, Array]:
        """Return the spans of the innermost operators of a thread, and their name codes."""
        if thread not in self._inner:
            rows = self.rows.select(self.rows["thread"] == thread).of_kind(*_OPERATOR_KINDS)
            inner = innermost(rows)
            order = np.argsort(inner.start_ns, kind="stable")
            self._inner[thread] = Spans(inner.start_ns[order], inner.end_ns[order]), rows["name"][inner.row[order]]
        return self._inner[thread]


def _operators(host: _Host, part: Part, spans: Spans, min_ns: float) -> Iterator[IdleOperator]:
    operators = [
        (thread, *operator)
        for thread, thread_spans in _by_thread(host, part, spans)
        for operator in _by_operator(host, thread, thread_spans)
    ]
    operators.sort(key=lambda operator: -operator[2])
    names = host.run.event_rows.text("name").vocabulary
    listed = [
        operator
        for index, operator in enumerate(operators[:MAX_OPERATORS])
        if operator[2] >= min_ns or index < MIN_OPERATORS
    ]
    if len(operators) == len(listed) + 1:
        listed = operators
    for thread, code, ns, operator_spans in listed:
        yield IdleOperator(
            names[code] if code != OUTSIDE else None, thread, ns, deepest_frame(host.run, operator_spans)
        )
    rest = operators[len(listed) :]
    if rest:
        yield IdleOperator(None, host.run.main_thread, sum(ns for _, _, ns, _ in rest), others=len(rest))


def _by_thread(host: _Host, part: Part, spans: Spans) -> Iterator[tuple[int, Spans]]:
    """Yield the time of a part by thread; each instant goes to the first thread with a call of that kind."""
    left = spans
    if part.key in HOST_KINDS:
        calls = host.rows.of_kind(HOST_KINDS[part.key])
        for thread in host.threads:
            thread_spans = intersect(left, calls.select(calls["thread"] == thread).spans())
            left = subtract(left, thread_spans)
            if thread_spans.total_ns:
                yield thread, thread_spans
    if left.total_ns:
        yield host.run.main_thread, left


def _by_operator(host: _Host, thread: int, spans: Spans) -> Iterator[tuple[int, int, Spans]]:
    """Yield name code, ns and spans of each innermost operator of the thread within these spans."""
    inner, name = host.inner(thread)
    inside = intersect(spans, inner)
    codes = name[np.searchsorted(inner.start_ns, inside.start_ns, side="right") - 1] if len(name) else name
    for code, operator_spans in _by_code(codes, inside):
        yield code, operator_spans.total_ns, operator_spans
    outside = subtract(spans, union(inside.start_ns, inside.end_ns))
    if outside.total_ns:
        yield OUTSIDE, outside.total_ns, outside


def _by_code(codes: Array, spans: Spans) -> Iterator[tuple[int, Spans]]:
    """Yield the spans of each code, in order of time."""
    order = np.argsort(codes, kind="stable")
    cuts: Ints = np.flatnonzero(np.diff(codes[order])) + 1
    for indices in np.split(order, cuts) if len(order) else ():
        yield int(codes[indices[0]]), Spans(spans.start_ns[indices], spans.end_ns[indices])
