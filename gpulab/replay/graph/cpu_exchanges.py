"""Collectives of a CPU backend as device ops: its threads exchange data while the main thread computes or waits.

A call (`c10d::allreduce_`) hands each exchange to the backend's threads, which take them one after another. The main
thread waits where the ledger says "waiting for collectives" until an exchange ends.
"""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.cpu_collectives import cpu_collective_rows
from gpulab.analysis.events.device_work import DeviceWork
from gpulab.analysis.ranks.collectives import collective_kind
from gpulab.analysis.steps.ledger import LONG_GAP_NS
from gpulab.intervals import Ints, Spans
from gpulab.replay.graph.graph import NONE, Floats, NodeKind
from gpulab.run import Run
from gpulab.tables import EventKind

_CALL = "c10d::"
WAKE_NS = 1_000_000  # the waiting thread goes on within this time after the exchange, also on a busy CPU
# The backend wakes the waiting thread before its own event ends; on a busy CPU its thread may then have to wait.
EARLY_NS = 5_000_000


def exchanges(run: Run) -> DeviceWork:
    """Return the collectives of CPU backends as device work, in order of their start."""
    return DeviceWork(run.event_rows, cpu_collective_rows(run))


def exchange_calls(work: DeviceWork) -> Ints:
    """Return the event row of the call that handed over each exchange; -1 if it was not recorded.

    Exchanges of one kind are carried out in the order of their calls, so the last one belongs to the last call.
    """
    events = work.events
    names = events.text("name").vocabulary
    call_rows = np.flatnonzero(events.is_kind(EventKind.OP) & events.matching(lambda word: word.startswith(_CALL)))
    call_rows = call_rows[np.argsort(events["start_ns"][call_rows], kind="stable")]
    starts, codes = events["start_ns"], events["name"]
    calls = np.full(len(work), NONE, np.int64)
    open_calls: dict[str, list[int]] = {}
    for row in call_rows.tolist():
        open_calls.setdefault(collective_kind(names[codes[row]].removeprefix(_CALL)), []).append(row)
    for index in range(len(work) - 1, -1, -1):
        row = int(work.event_rows[index])
        candidates = open_calls.get(collective_kind(names[codes[row]].partition(":")[2]), [])
        while candidates and starts[candidates[-1]] > starts[row]:
            candidates.pop()
        if candidates:
            calls[index] = candidates.pop()
    return calls


def awaited_exchanges(waiting: Spans, at_ns: Ints, kind: Ints, work: DeviceWork) -> tuple[Ints, Floats]:
    """For each host node, the exchange that the main thread waited for (-1: none), and the delay after its end.

    `waiting`: the spans in which the main thread waited. A span ends about when an exchange does; another span was no
    wait, but code that ran during an exchange.
    """
    awaited, delay_ns = np.full(len(at_ns), NONE, np.int64), np.zeros(len(at_ns))
    points = np.flatnonzero(kind == NodeKind.POINT)
    if not len(work) or not len(points):
        return awaited, delay_ns
    order = np.argsort(work.end_ns, kind="stable")
    ends, starts = work.end_ns[order], work.start_ns[order]
    nodes = points[np.minimum(np.searchsorted(at_ns[points], waiting.end_ns), len(points) - 1)]
    for node, start_ns, end_ns in zip(nodes.tolist(), waiting.start_ns.tolist(), waiting.end_ns.tolist(), strict=True):
        if at_ns[node] != end_ns:
            continue
        earliest_ns = max(start_ns, end_ns - WAKE_NS)
        latest_ns = end_ns + (EARLY_NS if end_ns - start_ns >= LONG_GAP_NS else 0)
        near = np.flatnonzero((ends > earliest_ns) & (ends <= latest_ns) & (starts < end_ns))
        if len(near):
            index = near[np.abs(ends[near] - end_ns).argmin()]
            awaited[node], delay_ns[node] = order[index], float(end_ns - ends[index])
    return awaited, delay_ns
