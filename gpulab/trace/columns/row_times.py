"""Order of rows in time, and which rows have usable times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.trace.columns.times import MISSING
from gpulab.trace.reading.limits import FAR_AWAY, NEGATIVE, NO_TIME, TOO_LONG, Losses

_WEEK_NS = 7 * 86_400 * 10**9
_MAX_TOTAL_NS = 2**62


def time_order(start: Ints, dur: Ints) -> Ints:
    """Sort by start; with equal starts, as in traces in whole us, parents come before their children."""
    # A trace is a few sorted sequences, which are cheap to merge; only equal starts need sorting by length.
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    same = np.append(ordered[1:] == ordered[:-1], False)
    same[1:] |= same[:-1]
    ties = np.flatnonzero(same)
    events = order[ties]
    order[ties] = events[np.lexsort((-dur[events], start[events]))]
    return order


def usable_times(start: Ints, dur: Ints, losses: Losses) -> NDArray[np.bool_]:
    """Mask of rows with a plausible time. Changes missing and negative durations to zero."""
    usable: NDArray[np.bool_] = start != MISSING
    losses.add(NO_TIME, int((~usable).sum()))
    unknown = dur == MISSING
    dur[unknown] = 0
    losses.add(NEGATIVE, int((dur < 0).sum()))
    np.maximum(dur, 0, out=dur)
    if usable.any():
        middle = int(np.median(start[usable].astype(np.float64)))
        # A single event of the year 1970 would make a run of half a century.
        near = (abs(start - middle) < _WEEK_NS) & (dur < _WEEK_NS)
        losses.add(FAR_AWAY, int((usable & ~near).sum()))
        usable &= near
    # Sums of durations must fit in 64 bits: in a recording they are a tiny fraction of that.
    if dur[usable].sum(dtype=np.float64) > _MAX_TOTAL_NS:
        short = dur < _MAX_TOTAL_NS // len(dur)
        losses.add(TOO_LONG, int((usable & ~short).sum()))
        usable &= short
    return usable
