"""Launch delays: the time from a launch call to its device work, and the depth of the launch queue.

A call and the device work it started have the same correlation id. A graph launch is one call with many kernels; each
is linked to it. If several calls have the same id (a trace merged from several processes, a runtime call that wraps a
driver call), work belongs to the last of them that started before the work did, or else to the first.

A long delay is not a problem by itself: the queue was filled (run-ahead), so the device did not wait for the host. If
the device idles between kernels, work starts right after its launch call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import DeviceWork, device_work
from gpulab.columns import Column
from gpulab.intervals import Ints
from gpulab.rows import Array, Rows, Table
from gpulab.run import Run
from gpulab.tables import RUNTIME_KINDS, EventKind

LAUNCHES = Table(
    "launches",
    (
        Column("event", "int32", "row number of the device work in the events table"),
        Column("call", "int32", "row number of the call that started it"),
        Column("kind", "int8", "kind of work: a gpulab.tables.EventKind", EventKind),
        Column("delay_ns", "int64", "from the start of the call to the start of the work; < 0 only if clocks disagree"),
        Column(
            "after_call_ns", "int64", "from the end of the call to the start of the work; < 0: the work started before"
        ),
        Column(
            "queued", "int32", "queue depth of its device at the call: work launched and not started, this included"
        ),
    ),
)


@dataclass(frozen=True, eq=False)
class LaunchDelays:
    """Device work linked to the calls that started it, in order of its start."""

    rows: Rows  # rows of the table LAUNCHES: work whose call is in the trace
    unlinked: int  # number of device ops whose call is not in the trace
    unlinked_kernels: int

    @property
    def median_ns(self) -> int | None:
        """The median delay, rounded down; None if no work is linked to a call."""
        return int(np.floor(np.median(self.rows["delay_ns"]))) if len(self.rows) else None


def launch_delays(run: Run, device: int | None = None) -> LaunchDelays | None:
    """Compute how long the work of a device, or of all devices, waited after its launch; None without work."""
    work = device_work(run, device)
    if not len(work):
        return None
    call = launch_calls(work)
    linked = call >= 0
    return LaunchDelays(
        rows=_rows(work.select(linked), call[linked]),
        unlinked=int((~linked).sum()),
        unlinked_kernels=int((work.kind_mask(EventKind.KERNEL, EventKind.COLLECTIVE) & ~linked).sum()),
    )


def _rows(work: DeviceWork, call: Ints) -> Rows:
    start, call_ns = work.start_ns, work.events["start_ns"][call]
    delay = start - call_ns
    return LAUNCHES.rows(
        {
            "event": work.event_rows,
            "call": call,
            "kind": work["kind"],
            "delay_ns": delay,
            "after_call_ns": delay - work.events["dur_ns"][call],
            "queued": _queued(work["device"], call_ns, np.maximum(start, call_ns)),
        }
    )


def _queued(device: Array, call_ns: Ints, start_ns: Ints) -> Ints:
    """Return, for each device op, how many ops of its device were launched and not started when it was launched."""
    queued = np.zeros(len(call_ns), np.int64)
    for index in np.unique(device).tolist():
        ops_of_device = np.flatnonzero(device == index)
        # searchsorted with sorted queries is several times as fast.
        order = ops_of_device[np.argsort(call_ns[ops_of_device], kind="stable")]
        at, starts = call_ns[order], np.sort(start_ns[ops_of_device], kind="stable")
        queued[order] = np.searchsorted(at, at, side="right") - np.searchsorted(starts, at)
    return queued


def launch_calls(work: DeviceWork) -> Ints:
    """Return, for each device op, the row of the call that started it; -1 if the trace has none."""
    kind, correlation, start = (work.events[column] for column in ("kind", "correlation", "start_ns"))
    calls = np.flatnonzero((kind >= min(RUNTIME_KINDS).value) & (kind <= max(RUNTIME_KINDS).value) & (correlation >= 0))
    calls = calls[np.argsort(start[calls], kind="stable")]
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    if not len(calls):
        return np.full(len(work), -1, np.int64)
    call_ids, work_ids = correlation[calls], work["correlation"]
    first = np.minimum(np.searchsorted(call_ids, work_ids), len(calls) - 1)
    linked = call_ids[first] == work_ids
    launch_call = np.where(linked, calls[first], -1)
    repeated = np.append(call_ids[1:] == call_ids[:-1], False)
    ambiguous = np.flatnonzero(linked & repeated[first])
    if len(ambiguous):
        launch_call[ambiguous] = _last_started(
            calls, DeviceWork(work.events, work.event_rows[ambiguous]), launch_call[ambiguous]
        )
    return launch_call


def _last_started(calls: Ints, work: DeviceWork, otherwise: Ints) -> Ints:
    """Return, for each device op, the last call of its correlation that started before it, else `otherwise`."""
    row = np.append(calls, work.event_rows)
    ids, starts = work.events["correlation"][row], work.events["start_ns"][row]
    is_work = np.arange(len(row)) >= len(calls)
    # Sort calls and work together, calls first at equal times, and carry each call forward to the work after it.
    order = np.lexsort((is_work, starts, ids))
    carried = order[np.maximum(np.maximum.accumulate(np.where(is_work[order], -1, np.arange(len(order)))), 0)]
    last_call = np.empty(len(row), np.int64)
    last_call[order] = np.where(~is_work[carried] & (ids[carried] == ids[order]), row[carried], -1)
    call_of_work = last_call[len(calls) :]
    return np.where(call_of_work >= 0, call_of_work, otherwise)
