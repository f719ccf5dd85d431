"""Synchronisation: waits of the host for the device and their cost, the device idling until its queue is refilled.

A wait is a synchronising call, or a D2H copy that returns only when the data has arrived. It is named by the enclosing
operator. The wait itself costs nothing, because the device works meanwhile. Its cost is the idle time inside it, the
idle time after it until the next work, in which the host dispatches operators, and exposed D2H copies. H2D copies from
pageable memory also wait; gpulab.analysis.copies.host_to_device accounts for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import DISPATCH_KEYS, Ledger
from gpulab.intervals import Ints, Spans, covered_ns, gaps, intersect, no_spans, union, union_of
from gpulab.rows import Array, Rows, TextColumn
from gpulab.run import Run
from gpulab.tables import RUNTIME_KINDS, EventKind

VALUE_OPS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::allclose")
# Operators with data-dependent output sizes: the host must know the size before it can continue.
DATA_DEPENDENT_OPS = (
    *("aten::nonzero", "aten::nonzero_numpy", "aten::where", "aten::masked_select", "aten::index", "aten::index_put_"),
    *("aten::unique_consecutive", "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique"),
    *("aten::bincount", "aten::repeat_interleave"),
)
COPY_OPS = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::_pin_memory")
REACH_NS = 1_000_000  # idle time that starts later after the wait has another cause
QUEUED_NS = 30_000  # a few small kernels; with less work than this, the queue was empty
RETURN_NS = 2_000  # the clocks of host and device agree to about a microsecond
REFILL_PARTS = ("sync", "copy_call", *DISPATCH_KEYS)  # idle parts in which the host prepares the next work


@dataclass(frozen=True, kw_only=True)
class HostWaits:
    """Host waits for the device in interior steps, per typical step."""

    count: int
    by_op: tuple[tuple[str, int], ...]  # operators or calls that waited and their count, most costly first
    blocked_ns: int  # time of the host inside waits; the device mostly works
    idle_ns: int  # the cost: device idle inside and right after waits, and exposed D2H copies
    copying_ns: int  # part of idle_ns: exposed D2H copies
    longest_ns: int  # the longest single wait
    spans: Spans  # the time of the cost, over all interior steps


def host_waits(run: Run, steps: Steps, ledger: Ledger) -> HostWaits | None:
    """Compute the cost of host waits for the device in interior steps; None if there were none."""
    calls = rows_in_interior(run.event_rows.of_kind(EventKind.SYNC, EventKind.COPY_CALL), steps)
    ops = _waiting_operators(run)
    operator = containing_operators(ops, calls)
    calls, operator = _waiting_calls(run, calls, operator)
    if not len(calls):
        return None
    first, wait_of_call = _group_by_operator(operator)
    start = np.full(len(first), np.iinfo(np.int64).max)
    end = np.zeros(len(first), np.int64)
    np.minimum.at(start, wait_of_call, calls["start_ns"])
    np.maximum.at(end, wait_of_call, calls["start_ns"] + calls["dur_ns"])
    inside, refill = wait_cost_spans(ledger, start, end)
    reads = copies_in_direction(run, "DtoH")
    reads = reads.select(np.isin(reads["correlation"], calls["correlation"][calls["correlation"] >= 0]))
    reading = intersect(ledger.spans["copies"], reads.spans())
    spans = union_of(inside, refill, reading)
    step_count = int(steps.interior.sum())
    op_names = np.append(ops["name"], -1)[operator[first]]  # calls use the same vocabulary
    codes = np.where(operator[first] >= 0, op_names, calls["name"][first])
    names = TextColumn(codes, calls.text("name").vocabulary).to_list()
    return HostWaits(
        count=max(1, round(len(first) / step_count)),
        by_op=_ranked(names, covered_ns(spans, start, end + REACH_NS), step_count),
        blocked_ns=steps.typical_covered_ns(union(start, end)),
        idle_ns=steps.typical_covered_ns(spans),
        copying_ns=steps.typical_covered_ns(reading),
        longest_ns=int((end - start).max()),
        spans=spans,
    )


def wait_cost_spans(ledger: Ledger, start_ns: Ints, end_ns: Ints) -> tuple[Spans, Spans]:
    """Return the idle time of the device inside waits, and after them until the queue is refilled.

    Other host activity, such as data loading, has its own ledger part and is not counted. A wait with an almost empty
    queue costs nothing afterwards: the device was waiting for the host anyway.
    """
    idle = union_of(*(ledger.spans[key] for key in REFILL_PARTS))
    inside = intersect(idle, union(start_ns, end_ns))
    busy = union_of(*(ledger.spans[part.key] for part in ledger.parts if part.busy))
    if not len(busy.start_ns):
        return inside, no_spans()
    gap = gaps(busy, int(busy.start_ns[0]), int(busy.end_ns[-1]))  # time after the last work does not count
    ends = end_ns[covered_ns(busy, start_ns, end_ns) >= QUEUED_NS]
    index = np.searchsorted(gap.end_ns, ends, side="right")
    ends, index = ends[index < len(gap.end_ns)], index[index < len(gap.end_ns)]
    near = gap.start_ns[index] - ends < REACH_NS
    starts = np.maximum(gap.start_ns[index], ends)[near]
    return inside, intersect(idle, union(starts, gap.end_ns[index][near]))


def containing_operators(ops: Rows, calls: Rows) -> Ints:
    """Return, for each call, the index in `ops` of the operator that contains it; -1 if none. `ops` must not nest."""
    operators = np.full(len(calls), -1, np.int64)
    for thread in np.unique(calls["thread"]).tolist():
        thread_ops = np.flatnonzero(ops["thread"] == thread)
        if not len(thread_ops):
            continue
        thread_ops = thread_ops[np.argsort(ops["start_ns"][thread_ops], kind="stable")]
        thread_calls = np.flatnonzero(calls["thread"] == thread)
        at = calls["start_ns"][thread_calls]
        last = np.searchsorted(ops["start_ns"][thread_ops], at, side="right") - 1
        candidate = thread_ops[np.maximum(last, 0)]
        contains = (last >= 0) & (at < ops["start_ns"][candidate] + ops["dur_ns"][candidate])
        operators[thread_calls] = np.where(contains, candidate, -1)
    return operators


def copies_in_direction(run: Run, direction: str) -> Rows:
    """Return the copies in this direction, such as "HtoD"."""
    copies = run.event_rows.of_kind(EventKind.MEMCPY)
    names, codes = copies.text("name"), np.unique(copies["name"])
    selected = [code for code in codes.tolist() if code >= 0 and copy_direction(names.vocabulary[code]) == direction]
    return copies.select(np.isin(copies["name"], selected))


def contains_runtime_call(run: Run, rows: Rows) -> Mask:
    """Return a mask of the operators that contain a runtime call. The others ran on the CPU."""
    events = run.event_rows
    runtime = (events["kind"] >= min(RUNTIME_KINDS)) & (events["kind"] <= max(RUNTIME_KINDS))
    mask = np.zeros(len(rows), bool)
    for thread in np.unique(rows["thread"]).tolist():
        at = np.sort(events["start_ns"][np.flatnonzero(runtime & (events["thread"] == thread))])
        thread_rows = np.flatnonzero(rows["thread"] == thread)
        start = rows["start_ns"][thread_rows]
        mask[thread_rows] = np.searchsorted(at, start + rows["dur_ns"][thread_rows]) > np.searchsorted(at, start)
    return mask


def _waiting_operators(run: Run) -> Rows:
    """Return the outermost operators that may wait for the device."""
    events = run.event_rows
    names = {*VALUE_OPS, *DATA_DEPENDENT_OPS, *COPY_OPS}
    ops = events.select(np.flatnonzero(events.matching(names.__contains__) & events.is_kind(EventKind.OP)))
    return ops.select(outermost(ops))


def _waiting_calls(run: Run, calls: Rows, operator: Ints) -> tuple[Rows, Ints]:
    """Return the calls that wait for work of the device, and their operators.

    Excluded are calls for H2D copies, D2H copies that return before the data has arrived, and synchronisations before
    the first or after the last launch, which belong to the profiler.
    """
    sync = calls.is_kind(EventKind.SYNC)
    writes = (
        np.isin(calls["correlation"], copies_in_direction(run, "HtoD")["correlation"])
        & (calls["correlation"] >= 0)
        & ~sync
    )
    of_writes = np.isin(operator, operator[writes & (operator >= 0)])
    waits = (sync | _blocking_reads(run, calls)) & ~writes & ~of_writes
    waits &= np.isin(calls["thread"], _launching_threads(run)) & ~_at_the_edge(run, calls, operator)
    return calls.select(waits), operator[waits]


def _blocking_reads(run: Run, calls: Rows) -> Array:
    """Return a mask of the copy calls that return only after their D2H copy has ended."""
    copies = copies_in_direction(run, "DtoH")
    order = np.argsort(copies["correlation"], kind="stable")
    copy_ids, ends = copies["correlation"][order], (copies["start_ns"] + copies["dur_ns"])[order]
    if not len(copy_ids):
        return np.zeros(len(calls), bool)
    index = np.minimum(np.searchsorted(copy_ids, calls["correlation"]), len(copy_ids) - 1)
    linked = (
        (copy_ids[index] == calls["correlation"]) & (calls["correlation"] >= 0) & calls.is_kind(EventKind.COPY_CALL)
    )
    blocked: Array = linked & (calls["start_ns"] + calls["dur_ns"] + RETURN_NS >= ends[index])
    return blocked


def _launching_threads(run: Run) -> Ints:
    """Return the threads that launch work. Only their waits delay the device, not those of a watchdog thread."""
    events = run.event_rows
    calls = np.flatnonzero(events.is_kind(EventKind.LAUNCH) | events.is_kind(EventKind.COPY_CALL))
    return np.union1d(np.unique(events["thread"][calls]), [run.main_thread])


def _at_the_edge(run: Run, calls: Rows, operator: Ints) -> Array:
    """Return a mask of the synchronisations outside any operator, before the first or after the last launch."""
    alone: Array = calls.is_kind(EventKind.SYNC) & (operator < 0)
    launch_ns = run.event_rows.of_kind(EventKind.LAUNCH, EventKind.COPY_CALL)["start_ns"]
    if not len(launch_ns):
        return alone
    outside: Array = (calls["start_ns"] < launch_ns.min()) | (calls["start_ns"] > launch_ns.max())
    return alone & outside


def _group_by_operator(operator: Ints) -> tuple[Ints, Ints]:
    """Group calls into waits: all calls of one operator, or a single call. Return first call, and wait of each call."""
    keys = np.where(operator >= 0, operator, -1 - np.arange(len(operator)))
    _, first, wait_of_call = np.unique(keys, return_index=True, return_inverse=True)
    return first, wait_of_call


def _ranked(names: list[str | None], cost_ns: Ints, step_count: int) -> tuple[tuple[str, int], ...]:
    totals: dict[str, list[int]] = {}
    for name, cost in zip(names, cost_ns.tolist(), strict=True):
        entry = totals.setdefault(name or "unnamed call", [0, 0])
        entry[0] += cost
        entry[1] += 1
    order = sorted(totals.items(), key=lambda item: (-item[1][0], -item[1][1]))
    return tuple((name, max(1, round(count / step_count))) for name, (_, count) in order)
