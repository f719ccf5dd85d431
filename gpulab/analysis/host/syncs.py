"""Waits of the host for the device, and what each costs: the device has nothing to do until its queue is filled again.

A wait is a synchronising call, or a copy to the host that returns only when the data are there. It is named by the
operator around it. The wait itself is no loss, as the device works meanwhile; its cost is the idle time inside it,
that after it, up to the next work, in which the host calls operators, and a copy to the host with no kernel beside
it. A copy to the device from pageable memory waits as well: that is told with the copies to it, in
gpulab.analysis.copies.host_to_device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.table import direction
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import DISPATCHING, Ledger
from gpulab.intervals import Ints, Spans, covered_ns, gaps, intersect, merged, nothing, union
from gpulab.rows import Array, Rows, Words
from gpulab.run import Run
from gpulab.tables import RUNTIME_KINDS, Kind

VALUES = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::allclose")
# Operators whose result has as many elements as the data decide: the host must know before it can go on.
SHAPES = (
    *("aten::nonzero", "aten::nonzero_numpy", "aten::where", "aten::masked_select", "aten::index", "aten::index_put_"),
    *("aten::unique_consecutive", "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique"),
    *("aten::bincount", "aten::repeat_interleave"),
)
MOVES = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::_pin_memory")
REACH_NS = 1_000_000  # idle that begins later than this after the wait has another cause
QUEUED_NS = 30_000  # a few small kernels; less work than this was not a queue
RETURN_NS = 2_000  # the clocks of host and device agree to about a microsecond
FILLING = ("sync", "copy_call", *DISPATCHING)  # idle parts in which the host is on its way to the next work


@dataclass(frozen=True, kw_only=True)
class Syncs:
    """Waits of the host for the device in interior steps, per typical step."""

    count: int
    by_op: tuple[tuple[str, int], ...]  # the operators or calls that waited, most costly first, and how often
    blocked_ns: int  # the host inside the waits: mostly useful device work
    idle_ns: int  # device idle inside and right after them, or copying to the host only: the cost
    copying_ns: int  # of that, the copies to the host
    longest_ns: int  # the longest wait of all
    spans: Spans  # the time that is the cost, over all interior steps


def host_waits(run: Run, steps: Steps, ledger: Ledger) -> Syncs | None:
    """What the host's waits for the device cost in interior steps; None where there were none."""
    calls = in_interior(run.event_rows.of_kind(Kind.SYNC, Kind.COPY_CALL), steps)
    ops = _holding(run)
    holder = holders(ops, calls)
    calls, holder = _waiting(run, calls, holder)
    if not len(calls):
        return None
    first, of_call = _grouped(holder)
    start = np.full(len(first), np.iinfo(np.int64).max)
    end = np.zeros(len(first), np.int64)
    np.minimum.at(start, of_call, calls["start_ns"])
    np.maximum.at(end, of_call, calls["start_ns"] + calls["dur_ns"])
    inside, refill = waiting_cost(ledger, start, end)
    reads = copied(run, "DtoH")
    reads = reads.where(np.isin(reads["correlation"], calls["correlation"][calls["correlation"] >= 0]))
    reading = intersect(ledger.spans["copies"], reads.spans())
    spans = merged(inside, refill, reading)
    many = int(steps.interior.sum())
    named = np.append(ops["name"], -1)[holder[first]]  # both name by the vocabulary of the run
    whose = Words(np.where(holder[first] >= 0, named, calls["name"][first]), calls.words("name").vocabulary).to_list()
    return Syncs(
        count=max(1, round(len(first) / many)),
        by_op=_ranked(whose, covered_ns(spans, start, end + REACH_NS), many),
        blocked_ns=steps.typical_covered_ns(union(start, end)),
        idle_ns=steps.typical_covered_ns(spans),
        copying_ns=steps.typical_covered_ns(reading),
        longest_ns=int((end - start).max()),
        spans=spans,
    )


def waiting_cost(ledger: Ledger, start_ns: Ints, end_ns: Ints) -> tuple[Spans, Spans]:
    """Device idle inside waits, and after them until the queue is filled again.

    What the host does then on its own account, as loading data, has its own part of the ledger and is not counted. A
    wait that found the queue all but empty costs nothing afterwards: the host was behind anyway.
    """
    idle = merged(*(ledger.spans[key] for key in FILLING))
    inside = intersect(idle, union(start_ns, end_ns))
    busy = merged(*(ledger.spans[part.key] for part in ledger.parts if part.busy))
    if not len(busy.start_ns):
        return inside, nothing()
    gap = gaps(busy, int(busy.start_ns[0]), int(busy.end_ns[-1]))  # after the last work nothing was to follow
    ends = end_ns[covered_ns(busy, start_ns, end_ns) >= QUEUED_NS]
    place = np.searchsorted(gap.end_ns, ends, side="right")
    ends, place = ends[place < len(gap.end_ns)], place[place < len(gap.end_ns)]
    near = gap.start_ns[place] - ends < REACH_NS
    opens = np.maximum(gap.start_ns[place], ends)[near]
    return inside, intersect(idle, union(opens, gap.end_ns[place][near]))


def holders(ops: Rows, calls: Rows) -> Ints:
    """For each call the operator it lies in, an index into `ops`, of which none lies in another; -1 for none."""
    found = np.full(len(calls), -1, np.int64)
    for thread in np.unique(calls["thread"]).tolist():
        mine = np.flatnonzero(ops["thread"] == thread)
        if not len(mine):
            continue
        mine = mine[np.argsort(ops["start_ns"][mine], kind="stable")]
        asked = np.flatnonzero(calls["thread"] == thread)
        at = calls["start_ns"][asked]
        last = np.searchsorted(ops["start_ns"][mine], at, side="right") - 1
        place = mine[np.maximum(last, 0)]
        within = (last >= 0) & (at < ops["start_ns"][place] + ops["dur_ns"][place])
        found[asked] = np.where(within, place, -1)
    return found


def copied(run: Run, way: str) -> Rows:
    """The copies in this direction, as HtoD."""
    copies = run.event_rows.of_kind(Kind.MEMCPY)
    words, codes = copies.words("name"), np.unique(copies["name"])
    wanted = [code for code in codes.tolist() if code >= 0 and direction(words.vocabulary[code]) == way]
    return copies.where(np.isin(copies["name"], wanted))


def holds_call(run: Run, rows: Rows) -> Mask:
    """Which of these operators hold a call to the device: the others were done by the CPU."""
    events = run.event_rows
    runtime = (events["kind"] >= min(RUNTIME_KINDS)) & (events["kind"] <= max(RUNTIME_KINDS))
    held = np.zeros(len(rows), bool)
    for thread in np.unique(rows["thread"]).tolist():
        at = np.sort(events["start_ns"][np.flatnonzero(runtime & (events["thread"] == thread))])
        mine = np.flatnonzero(rows["thread"] == thread)
        start = rows["start_ns"][mine]
        held[mine] = np.searchsorted(at, start + rows["dur_ns"][mine]) > np.searchsorted(at, start)
    return held


def _holding(run: Run) -> Rows:
    """The outermost operators that may wait, whoever calls them."""
    events = run.event_rows
    wanted = {*VALUES, *SHAPES, *MOVES}
    ops = events.where(np.flatnonzero(events.matching(wanted.__contains__) & (events["kind"] == Kind.OP)))
    return ops.where(outermost(ops))


def _waiting(run: Run, calls: Rows, holder: Ints) -> tuple[Rows, Ints]:
    """The calls that wait for work of the device, and what holds them.

    Not those about a copy to the device; a copy to the host only if it returns when the data are there; and none
    after which, or before which, nothing was ever called for: that is the profiler at its edges.
    """
    sync = calls["kind"] == Kind.SYNC
    writes = np.isin(calls["correlation"], copied(run, "HtoD")["correlation"]) & (calls["correlation"] >= 0) & ~sync
    about_writing = np.isin(holder, holder[writes & (holder >= 0)])
    keep = (sync | _read_to_the_end(run, calls)) & ~writes & ~about_writing
    keep &= np.isin(calls["thread"], _asking(run)) & ~_at_the_edge(run, calls, holder)
    return calls.where(keep), holder[keep]


def _read_to_the_end(run: Run, calls: Rows) -> Array:
    """The copy calls that return no earlier than the copy to the host is done."""
    copies = copied(run, "DtoH")
    order = np.argsort(copies["correlation"], kind="stable")
    known, ends = copies["correlation"][order], (copies["start_ns"] + copies["dur_ns"])[order]
    if not len(known):
        return np.zeros(len(calls), bool)
    place = np.minimum(np.searchsorted(known, calls["correlation"]), len(known) - 1)
    linked = (known[place] == calls["correlation"]) & (calls["correlation"] >= 0) & (calls["kind"] == Kind.COPY_CALL)
    blocked: Array = linked & (calls["start_ns"] + calls["dur_ns"] + RETURN_NS >= ends[place])
    return blocked


def _asking(run: Run) -> Ints:
    """The threads that ask for work: only their waits keep the device waiting, not those of a watchdog."""
    events = run.event_rows
    calls = np.flatnonzero((events["kind"] == Kind.LAUNCH) | (events["kind"] == Kind.COPY_CALL))
    return np.union1d(np.unique(events["thread"][calls]), [run.main_thread])


def _at_the_edge(run: Run, calls: Rows, holder: Ints) -> Array:
    """Synchronisations of nobody's before the first or after the last call for work."""
    alone: Array = (calls["kind"] == Kind.SYNC) & (holder < 0)
    kind = run.event_rows["kind"]
    asked = run.event_rows["start_ns"][np.flatnonzero((kind == Kind.LAUNCH) | (kind == Kind.COPY_CALL))]
    if not len(asked):
        return alone
    outside: Array = (calls["start_ns"] < asked.min()) | (calls["start_ns"] > asked.max())
    return alone & outside


def _grouped(holder: Ints) -> tuple[Ints, Ints]:
    """Calls of one operator are one wait, any other call is one of its own: the first call of each, and whose it is."""
    keys = np.where(holder >= 0, holder, -1 - np.arange(len(holder)))
    _, first, of_call = np.unique(keys, return_index=True, return_inverse=True)
    return first, of_call


def _ranked(names: list[str | None], cost_ns: Ints, many: int) -> tuple[tuple[str, int], ...]:
    told: dict[str, list[int]] = {}
    for name, cost in zip(names, cost_ns.tolist(), strict=True):
        entry = told.setdefault(name or "a call without a name", [0, 0])
        entry[0] += cost
        entry[1] += 1
    order = sorted(told.items(), key=lambda each: (-each[1][0], -each[1][1]))
    return tuple((name, max(1, round(count / many))) for name, (_, count) in order)
