"""Cost of the optimizer step: number of kernels or operators, multi-tensor ones, and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.events.nesting import enclosing_ranges, outermost
from gpulab.analysis.events.per_run import cached_by_run
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.kernels.interior_kernels import InteriorKernels
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints, Spans, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind, MarkKind

_STEP = "Optimizer.step#"
_BACKWARD = "autograd::engine::evaluate_function"
_MULTI_TENSOR = ("multi_tensor_apply", "_foreach_", "_fused_", "fused")  # multi-tensor kernels or operators


@dataclass(frozen=True, kw_only=True)
class OptimizerCost:
    """The optimizer step in the interior steps."""

    kind: str  # its class, as the trace names it: "AdamW"
    unit: str  # "kernel" or "operator"
    count: int  # kernels or operators per typical step
    multi_tensor: int  # those of them that update many tensors at once
    median_ns: int  # median duration of one
    host_ns: int  # time of the host inside the optimizer step, per typical step
    cost_ns: int  # time of the optimizer per typical step; on a GPU from its first kernel to its last
    spans: Spans


@cached_by_run
def optimizer_steps(run: Run) -> Rows:
    """Return the events of optimizer.step() calls, without the closures that they call.

    A closure computes the loss and its gradients: `optimizer.step(closure)`, as in LBFGS and in every Lightning module.
    The update follows the end of the last closure; in a trace without marks, the last backward pass of the call. It
    begins with an operator, after what its ranks wait for.
    """
    events = run.event_rows
    is_step = events.matching(lambda word: word.startswith(_STEP))
    calls = events.select(np.flatnonzero(is_step & events.is_kind(EventKind.ANNOTATION)))
    backward = events.select(np.flatnonzero(events.matching(lambda word: word.startswith(_BACKWARD)))).spans()
    if not len(backward.start_ns) or not len(calls):
        return calls
    start_ns, end_ns = calls["start_ns"], calls["start_ns"] + calls["dur_ns"]
    ends_ns = np.sort(np.append(backward.end_ns, run.mark_rows.of_kind(MarkKind.CLOSURE)["end_ns"]))
    last_ns = ends_ns[np.maximum(np.searchsorted(ends_ns, end_ns, side="right") - 1, 0)]
    has_closure = (last_ns > start_ns) & (last_ns <= end_ns)
    op_ns = np.append(np.sort(events["start_ns"][_main_thread_ops(run)]), np.iinfo(np.int64).max)
    first_op_ns = np.minimum(op_ns[np.searchsorted(op_ns, last_ns)], end_ns)
    update_ns = np.where(has_closure, first_op_ns, start_ns)
    columns = {**calls.columns, "start_ns": update_ns, "dur_ns": end_ns - update_ns}
    return calls.table.rows(columns)


def _main_thread_ops(run: Run) -> Ints:
    events = run.event_rows
    return np.flatnonzero(events.is_kind(EventKind.OP) & (events["thread"] == run.main_thread))


def mask_inside(events: Rows, rows: Ints, around: Rows) -> Mask:
    """Return a mask of the event rows that start inside one of the ranges on its thread; False for row -1."""
    inside = np.zeros(len(rows), bool)
    has_row = np.flatnonzero(rows >= 0)
    ranges = around.select(outermost(around))
    inside[has_row] = enclosing_ranges(ranges, events["thread"][rows[has_row]], events["start_ns"][rows[has_row]]) >= 0
    return inside


def optimizer_cost_on_gpu(kernels: InteriorKernels) -> OptimizerCost | None:
    """Compute the cost of the optimizer on a GPU; None if no optimizer step was recorded or it launched nothing."""
    calls = rows_in_interior(optimizer_steps(kernels.run), kernels.steps)
    if not len(calls):
        return None
    of_optimizer = mask_inside(kernels.run.event_rows, kernels.call, calls)
    if not of_optimizer.any():
        return None
    return OptimizerCost(
        kind=_kind(calls),
        unit="kernel",
        count=round(kernels.per_step(of_optimizer)),
        multi_tensor=round(kernels.per_step(of_optimizer & kernels.mask_names(_updates_many))),
        median_ns=int(np.median(kernels["dur_ns"][of_optimizer])),
        host_ns=kernels.typical_ns(calls.spans()),
        cost_ns=kernels.typical_ns(_extent(kernels, of_optimizer, calls)),
        spans=kernels.spans(of_optimizer),
    )


def _extent(kernels: InteriorKernels, of_optimizer: Mask, calls: Rows) -> Spans:
    """Return the time from first to last kernel of each optimizer step: gaps between them are waits for the host."""
    call_starts = np.sort(calls["start_ns"])
    call = (
        np.searchsorted(call_starts, kernels.run.event_rows["start_ns"][kernels.call[of_optimizer]], side="right") - 1
    )
    starts = np.full(len(call_starts), np.iinfo(np.int64).max)
    ends = np.zeros(len(call_starts), np.int64)
    np.minimum.at(starts, call, kernels.start_ns[of_optimizer])
    np.maximum.at(ends, call, kernels.end_ns[of_optimizer])
    return union(starts[ends > 0], ends[ends > 0])


def optimizer_cost_on_cpu(run: Run, steps: Steps) -> OptimizerCost | None:
    """Compute the cost of the optimizer on the CPU; None if no optimizer step was recorded."""
    calls = rows_in_interior(optimizer_steps(run), steps)
    if not len(calls):
        return None
    events = run.event_rows
    ops = np.flatnonzero(events.is_kind(EventKind.OP))
    ops = ops[mask_inside(events, ops, calls)]
    if not len(ops):
        return None
    step_count = max(1, int(steps.interior.sum()))
    cost_ns = steps.typical_covered_ns(calls.spans())
    return OptimizerCost(
        kind=_kind(calls),
        unit="operator",
        count=round(len(ops) / step_count),
        multi_tensor=round(int(events.matching(_updates_many)[ops].sum()) / step_count),
        median_ns=int(np.median(events["dur_ns"][ops])),
        host_ns=cost_ns,
        cost_ns=cost_ns,
        spans=calls.spans(),
    )


def _updates_many(name: str) -> bool:
    lower = name.lower()
    return any(word in lower for word in _MULTI_TENSOR)


def _kind(calls: Rows) -> str:
    """Return the class name in "Optimizer.step#AdamW.step"."""
    name = calls.text("name")[0] or ""
    return name.removeprefix(_STEP).partition(".")[0] or "optimizer"
