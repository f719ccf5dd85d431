"""Find the operator that made a call: the innermost one that ran on its thread at that time."""

from __future__ import annotations

import numpy as np

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.tables import EventKind

_DEEP = 64  # at most this many later operators that have already ended are skipped, such as views and allocations


def enclosing_operators(events: Rows, calls: Ints) -> Ints:
    """Return, for each call (an event row or -1), the row of the innermost enclosing operator; -1 if there is none."""
    operators = np.full(len(calls), -1, np.int64)
    ops = np.flatnonzero(events.is_kind(EventKind.OP))
    has_call = np.flatnonzero(calls >= 0)
    if not len(ops) or not len(has_call):
        return operators
    threads = events["thread"]
    for thread in np.unique(threads[calls[has_call]]).tolist():
        index = has_call[threads[calls[has_call]] == thread]
        operators[index] = _innermost(events, ops[threads[ops] == thread], calls[index])
    return operators


def _innermost(events: Rows, ops: Ints, calls: Ints) -> Ints:
    """Return the same for the calls of one thread. Events are in order of their start, parents before children."""
    start, end = events["start_ns"][ops], events["start_ns"][ops] + events["dur_ns"][ops]
    at = events["start_ns"][calls]
    position = np.searchsorted(start, at, side="right") - 1
    operators = np.full(len(calls), -1, np.int64)
    # Of nested ranges, the innermost is the last one that started and has not ended.
    unresolved = np.flatnonzero(position >= 0)
    for _ in range(_DEEP):
        encloses = end[position[unresolved]] >= at[unresolved]
        operators[unresolved[encloses]] = ops[position[unresolved[encloses]]]
        position[unresolved] -= 1
        unresolved = unresolved[~encloses & (position[unresolved] >= 0)]
        if not len(unresolved):
            break
    return operators
