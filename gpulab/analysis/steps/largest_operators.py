"""The operators that take the most time in a step: of the CPU, or of the kernels that they launch on a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import enclosing_ranges, outermost
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.optimizers import optimizer_steps
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, covered_ns
from gpulab.rows import Rows, concat
from gpulab.run import Run
from gpulab.tables import EVENTS, EventKind

_NODE = re.compile(r"autograd::engine::evaluate_function: (?:torch::autograd::)?(.*)")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#(.*)")


@dataclass(frozen=True, kw_only=True)
class OperatorCost:
    """An outermost operator, a node of the backward pass, or a method of an optimizer, in all complete steps."""

    name: str  # "aten::linear", "AddmmBackward0", "AdamW.step"
    calls_per_step: float
    frac: float  # of the complete steps, 0-1; on a GPU, that of its kernels, which may overlap with others


def largest_operators(run: Run, steps: Steps, ledger: Ledger) -> tuple[OperatorCost, ...]:
    """Return the operators by time, largest first; () where the trace has no operators.

    Operators inside others count for the outermost one, operators of `Optimizer.step()` for the optimizer. Operators
    of the DataLoader are left out, because the ledger counts them as waiting for data.
    """
    outer = _outermost_operators(run)
    if ledger.device == "cpu":
        outer = rows_in_interior(outer.select(outer["thread"] == run.main_thread), steps)
        row, cost_ns = np.arange(len(outer)), outer["dur_ns"]
    else:
        row, cost_ns = _launching_operators(run, steps, ledger, outer)
    step_count, steps_ns = int(steps.interior.sum()), int(ledger.step_ns.sum())
    codes, vocabulary = outer.text("name").codes, outer.text("name").vocabulary
    calls = np.bincount(codes[np.unique(row)], minlength=len(vocabulary))
    total_ns = np.bincount(codes[row], weights=cost_ns, minlength=len(vocabulary))
    return tuple(
        OperatorCost(
            name=_display_name(vocabulary[code]),
            calls_per_step=int(calls[code]) / step_count,
            frac=float(total_ns[code]) / steps_ns,
        )
        for code in np.argsort(-total_ns, kind="stable").tolist()
        if total_ns[code] > 0
    )


def _outermost_operators(run: Run) -> Rows:
    """Return the outermost operators and optimizer steps, without operators of loaders."""
    events = run.event_rows
    rows = concat(EVENTS, [optimizer_steps(run), events.of_kind(EventKind.OP)])
    rows = rows.select(outermost(rows))
    loading = events.of_kind(EventKind.LOADER).spans()
    return rows.select(np.flatnonzero(covered_ns(loading, rows["start_ns"], rows["start_ns"] + 1) == 0))


def _launching_operators(run: Run, steps: Steps, ledger: Ledger, outer: Rows) -> tuple[Ints, Ints]:
    """Return the operator of each kernel, as a row of `outer`, and the time of the kernel in interior steps."""
    kernels = interior_kernels(run, steps, ledger)
    if kernels is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    calls, events = kernels.call, run.event_rows
    operators = enclosing_ranges(outer, events["thread"][calls], events["start_ns"][calls])
    launched = np.flatnonzero((calls >= 0) & (operators >= 0))
    inside_ns = covered_ns(steps.interior_spans, kernels.start_ns[launched], kernels.end_ns[launched])
    return operators[launched], inside_ns


def _display_name(name: str) -> str:
    """Return "AddmmBackward0" for a node of the backward pass and "Adam.step" for an optimizer."""
    match = _NODE.fullmatch(name) or _OPTIMIZER.fullmatch(name)
    return match[1] if match else name
