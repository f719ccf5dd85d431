"""Calls that make the host wait for the device, and the idle time that follows each: the queue must refill."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.launches import in_interior
from gpulab.analysis.ledger import main_device
from gpulab.analysis.steps import Steps
from gpulab.analysis.work import device_work
from gpulab.intervals import Spans, covered_ns, gaps, intersect, nothing, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

# Operators whose result the host must see: each drains the queue. From the operator's name, whoever called it.
WAITING_OPS = (
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::unique",
    "aten::_unique2",
)
REACH_NS = 1_000_000  # idle that begins later than this after the wait has another cause
QUEUED_NS = 30_000  # a few small kernels; less work than this was not a queue


@dataclass(frozen=True, kw_only=True)
class Syncs:
    """Waits of the host for the device in interior steps, per step."""

    count: int
    by_op: tuple[tuple[str, int], ...]  # which operators waited, most first, count per step
    blocked_ns: int  # the host inside the waits: mostly useful device work
    idle_after_ns: int  # device idle right after them, until the queue refills: the cost
    spans: Spans  # that idle time, over all interior steps


def host_waits(run: Run, steps: Steps) -> Syncs | None:
    """What operators that wait for the device cost in interior steps; None where there were none."""
    ops = run.event_rows.of_kind(Kind.OP)
    names = ops.words("name")
    waiting = in_interior(ops.where(names.matching(word in WAITING_OPS for word in names.vocabulary)), steps)
    waiting = waiting.where(_waited(run, waiting))
    if not len(waiting):
        return None
    idle = _idle_after(_busy(run), steps, waiting)
    many = int(steps.interior.sum())
    return Syncs(
        count=max(1, round(len(waiting) / many)),
        by_op=_by_name(waiting, many),
        blocked_ns=waiting.spans().total_ns // many,
        idle_after_ns=int(np.median(covered_ns(idle, steps.start_ns[steps.interior], steps.end_ns[steps.interior]))),
        spans=idle,
    )


def _waited(run: Run, ops: Rows) -> np.ndarray:
    """The operators that hold a synchronising call, or a copy to the host; a CPU tensor's item() holds neither.

    aten::item calls aten::_local_scalar_dense: only the inner one is kept, so that a wait counts once.
    """
    calls = run.event_rows.of_kind(Kind.SYNC, Kind.COPY_CALL)
    at = np.sort(calls["start_ns"])
    ends = ops["start_ns"] + ops["dur_ns"]
    holds = np.searchsorted(at, ends) > np.searchsorted(at, ops["start_ns"])
    names = ops.words("name")
    outer = names.matching(word in ("aten::item", "aten::is_nonzero") for word in names.vocabulary)
    return holds & ~outer


def _busy(run: Run) -> Spans:
    """When the main device worked."""
    return device_work(run, main_device(run)).spans()


def _idle_after(busy: Spans, steps: Steps, waiting: Rows) -> Spans:
    """Device idle spans that touch the end of a wait for work that was queued: from there to the next device work.

    A wait that found the queue all but empty cost nothing: the host was behind anyway.
    """
    queued = covered_ns(busy, waiting["start_ns"], waiting["start_ns"] + waiting["dur_ns"]) >= QUEUED_NS
    waiting = waiting.where(queued)
    if not len(busy.start_ns) or not len(waiting):
        return nothing()
    idle = gaps(busy, int(busy.start_ns[0]), int(busy.end_ns[-1]))  # after the last work nothing was to follow
    ends = np.sort(waiting["start_ns"] + waiting["dur_ns"])
    # A wait that cost something ends inside an idle gap, or the gap opens just after it.
    first = np.searchsorted(ends, idle.start_ns - REACH_NS)
    touched = (first < len(ends)) & (ends[np.minimum(first, len(ends) - 1)] < idle.end_ns)
    inside = Spans(idle.start_ns[touched], idle.end_ns[touched])
    return intersect(inside, union(steps.start_ns[steps.interior], steps.end_ns[steps.interior]))


def _by_name(waiting: Rows, many: int) -> tuple[tuple[str, int], ...]:
    names = waiting.words("name")
    counts = np.bincount(names.codes, minlength=len(names.vocabulary))
    order = np.argsort(-counts, kind="stable")
    return tuple((names.vocabulary[code], max(1, round(counts[code] / many))) for code in order if counts[code])
