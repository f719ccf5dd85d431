"""What the optimizer's step costs: how many pieces of work for how many tensors, and the time that all of it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.kernels.interior import Interior
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints, Spans, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

_STEP = "Optimizer.step#"
_WHOLE = ("multi_tensor_apply", "_foreach_", "_fused_", "fused")  # one piece of work for many tensors


@dataclass(frozen=True, kw_only=True)
class Updating:
    """The optimizer's step in the interior steps."""

    kind: str  # its class, as the trace names it: "AdamW"
    unit: str  # "kernel" or "operator"
    pieces: int  # per typical step
    whole: int  # of these, the ones that update many tensors at once
    median_ns: int  # length of a piece
    host_ns: int  # how long the host is inside it, of a typical step
    cost_ns: int  # what it takes of a typical step: on a GPU from its first kernel to its last
    spans: Spans


def ranges(run: Run) -> Rows:
    """Each call of an optimizer's step."""
    events = run.event_rows
    inside = events.matching(lambda word: word.startswith(_STEP))
    return events.where(np.flatnonzero(inside & (events["kind"] == Kind.ANNOTATION)))


def within(events: Rows, rows: Ints, around: Rows) -> Mask:
    """Which of these rows of the events begin inside one of the ranges, on its thread; False for row -1."""
    inside = np.zeros(len(rows), bool)
    known = np.flatnonzero(rows >= 0)
    at, thread = events["start_ns"][rows[known]], events["thread"][rows[known]]
    for code in np.unique(around["thread"]).tolist():
        spans = around.where(around["thread"] == code).spans()
        place = np.searchsorted(spans.start_ns, at, side="right") - 1
        found = (place >= 0) & (thread == code)
        found &= at < spans.end_ns[np.maximum(place, 0)] if len(spans.end_ns) else False
        inside[known[found]] = True
    return inside


def updating_on_gpu(kernels: Interior) -> Updating | None:
    """The optimizer's kernels; None where no optimizer's step was recorded, or it launched nothing."""
    calls = in_interior(ranges(kernels.run), kernels.steps)
    if not len(calls):
        return None
    mine = within(kernels.run.event_rows, kernels.call, calls)
    if not mine.any():
        return None
    return Updating(
        kind=_kind(calls),
        unit="kernel",
        pieces=round(kernels.per_step(mine)),
        whole=round(kernels.per_step(mine & kernels.which(_updates_many))),
        median_ns=int(np.median(kernels["dur_ns"][mine])),
        host_ns=kernels.typical_ns(calls.spans()),
        cost_ns=kernels.typical_ns(_extent(kernels, mine, calls)),
        spans=kernels.spans(mine),
    )


def _extent(kernels: Interior, mine: Mask, calls: Rows) -> Spans:
    """From the first kernel of each step of the optimizer to the last: what stands between them waits for its host."""
    begun = np.sort(calls["start_ns"])
    call = np.searchsorted(begun, kernels.run.event_rows["start_ns"][kernels.call[mine]], side="right") - 1
    opens = np.full(len(begun), np.iinfo(np.int64).max)
    closes = np.zeros(len(begun), np.int64)
    np.minimum.at(opens, call, kernels.start_ns[mine])
    np.maximum.at(closes, call, kernels.end_ns[mine])
    return union(opens[closes > 0], closes[closes > 0])


def updating_on_cpu(run: Run, steps: Steps) -> Updating | None:
    """The optimizer's operators, where the CPU is the device; None where no optimizer's step was recorded."""
    calls = in_interior(ranges(run), steps)
    if not len(calls):
        return None
    events = run.event_rows
    ops = np.flatnonzero(events["kind"] == Kind.OP)
    ops = ops[within(events, ops, calls)]
    if not len(ops):
        return None
    many = max(1, int(steps.interior.sum()))
    cost_ns = steps.typical_covered_ns(calls.spans())
    return Updating(
        kind=_kind(calls),
        unit="operator",
        pieces=round(len(ops) / many),
        whole=round(int(events.matching(_updates_many)[ops].sum()) / many),
        median_ns=int(np.median(events["dur_ns"][ops])),
        host_ns=cost_ns,
        cost_ns=cost_ns,
        spans=calls.spans(),
    )


def _updates_many(name: str) -> bool:
    lower = name.lower()
    return any(word in lower for word in _WHOLE)


def _kind(calls: Rows) -> str:
    """The class in "Optimizer.step#AdamW.step"."""
    name = calls.words("name")[0] or ""
    return name.removeprefix(_STEP).partition(".")[0] or "optimizer"
