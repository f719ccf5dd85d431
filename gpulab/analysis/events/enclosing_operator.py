"""Which operator a call was made in: the innermost one that held its thread at that moment."""

from __future__ import annotations

import numpy as np

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.tables import Kind

_DEEP = 64  # operators that began later and were over already, looked past at most; views and allocations are such


def holders(events: Rows, calls: Ints) -> Ints:
    """For each call, a row of the events, the row of the innermost operator around it; -1 for none, and for call -1."""
    found = np.full(len(calls), -1, np.int64)
    ops = np.flatnonzero(events["kind"] == Kind.OP)
    known = np.flatnonzero(calls >= 0)
    if not len(ops) or not len(known):
        return found
    threads = events["thread"]
    for thread in np.unique(threads[calls[known]]).tolist():
        mine = known[threads[calls[known]] == thread]
        found[mine] = _innermost(events, ops[threads[ops] == thread], calls[mine])
    return found


def _innermost(events: Rows, ops: Ints, calls: Ints) -> Ints:
    """The same on one thread. Events stand in order of their start, parents before their children."""
    start, end = events["start_ns"][ops], events["start_ns"][ops] + events["dur_ns"][ops]
    at = events["start_ns"][calls]
    place = np.searchsorted(start, at, side="right") - 1
    found = np.full(len(calls), -1, np.int64)
    # Of nested ranges, the last one begun that is not over is the innermost.
    open_ = np.flatnonzero(place >= 0)
    for _ in range(_DEEP):
        holds = end[place[open_]] >= at[open_]
        found[open_[holds]] = ops[place[open_[holds]]]
        place[open_] -= 1
        open_ = open_[~holds & (place[open_] >= 0)]
        if not len(open_):
            break
    return found
