"""From a call to the work it started: how long work waited in the queue, and how full the queue was.

A call and the device work it started bear the same correlation. The launch of a graph is one call with many pieces
of work: each is joined to it. Where several calls bear one correlation (a trace merged of several processes, a
runtime call that wraps a driver call), work belongs to the last of them that had begun when it began; if none had,
to the first.

A long delay is no fault by itself: it says that the queue held work, so that the device need not wait for the host.
A device that idles is fed by calls whose work begins at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import Work, device_work
from gpulab.columns import Column
from gpulab.intervals import Ints
from gpulab.rows import Array, Rows, Table
from gpulab.run import Run
from gpulab.tables import RUNTIME_KINDS, Kind

LAUNCHES = Table(
    "launches",
    (
        Column("event", "int32", "the device work: which row of the events table"),
        Column("call", "int32", "the call that started it: which row of the events table"),
        Column("kind", "int8", "what the work is: a gpulab.tables.Kind", Kind),
        Column("delay_ns", "int64", "from the beginning of the call to that of the work; < 0 only if clocks disagree"),
        Column("after_call_ns", "int64", "from the end of the call to the beginning of the work; < 0: it began before"),
        Column(
            "queued", "int32", "how full its device's queue was: work called for by then and not begun, this included"
        ),
    ),
)


@dataclass(frozen=True, eq=False)
class LaunchDelays:
    """Device work joined to the calls that started it, in order of its beginning."""

    rows: Rows  # of the table LAUNCHES: work whose call is in the trace
    unlinked: int  # pieces of work whose call is not; they count in all other figures
    unlinked_kernels: int

    @property
    def median_ns(self) -> int | None:
        """The median delay, rounded down; None where no work is joined to a call."""
        return int(np.floor(np.median(self.rows["delay_ns"]))) if len(self.rows) else None


def launch_delays(run: Run, device: int | None = None) -> LaunchDelays | None:
    """How long the work of a device, or of all, waited after it was called for; None where there is no work."""
    work = device_work(run, device)
    if not len(work):
        return None
    call = calls_of(work)
    linked = call >= 0
    return LaunchDelays(
        rows=_rows(work.where(linked), call[linked]),
        unlinked=int((~linked).sum()),
        unlinked_kernels=int((work.is_kind(Kind.KERNEL, Kind.COLLECTIVE) & ~linked).sum()),
    )


def _rows(work: Work, call: Ints) -> Rows:
    start, called = work.start_ns, work.events["start_ns"][call]
    delay = start - called
    return LAUNCHES.rows(
        {
            "event": work.event,
            "call": call,
            "kind": work["kind"],
            "delay_ns": delay,
            "after_call_ns": delay - work.events["dur_ns"][call],
            "queued": _queued(work["device"], called, np.maximum(start, called)),
        }
    )


def _queued(device: Array, called: Ints, begun: Ints) -> Ints:
    """For each piece of work, how many of its device had been called for when it was and had not begun before that."""
    queued = np.zeros(len(called), np.int64)
    for index in np.unique(device).tolist():
        mine = np.flatnonzero(device == index)
        # Sorted questions to sorted answers: several times as fast as in the order of the work.
        order = mine[np.argsort(called[mine], kind="stable")]
        at, begins = called[order], np.sort(begun[mine], kind="stable")
        queued[order] = np.searchsorted(at, at, side="right") - np.searchsorted(begins, at)
    return queued


def calls_of(work: Work) -> Ints:
    """For each piece of work the row of the call that started it; -1 where the trace holds none."""
    kind, correlation, start = (work.events[column] for column in ("kind", "correlation", "start_ns"))
    calls = np.flatnonzero((kind >= min(RUNTIME_KINDS)) & (kind <= max(RUNTIME_KINDS)) & (correlation >= 0))
    calls = calls[np.argsort(start[calls], kind="stable")]
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    if not len(calls):
        return np.full(len(work), -1, np.int64)
    joins, wanted = correlation[calls], work["correlation"]
    first = np.minimum(np.searchsorted(joins, wanted), len(calls) - 1)
    linked = joins[first] == wanted
    found = np.where(linked, calls[first], -1)
    repeated = np.append(joins[1:] == joins[:-1], False)
    several = np.flatnonzero(linked & repeated[first])
    if len(several):
        found[several] = _last_begun(calls, Work(work.events, work.event[several]), found[several])
    return found


def _last_begun(calls: Ints, work: Work, otherwise: Ints) -> Ints:
    """For each piece of work the last call of its correlation that had begun when it began, else what is given."""
    row = np.append(calls, work.event)
    joins, begins = work.events["correlation"][row], work.events["start_ns"][row]
    asks = np.arange(len(row)) >= len(calls)
    # Calls and work in one order, a call before work of the same instant; each call is carried on to the next.
    order = np.lexsort((asks, begins, joins))
    carried = order[np.maximum(np.maximum.accumulate(np.where(asks[order], -1, np.arange(len(order)))), 0)]
    answer = np.empty(len(row), np.int64)
    answer[order] = np.where(~asks[carried] & (joins[carried] == joins[order]), row[carried], -1)
    mine = answer[len(calls) :]
    return np.where(mine >= 0, mine, otherwise)
