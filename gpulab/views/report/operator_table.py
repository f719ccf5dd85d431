"""The operators that take the most time, as a table."""

from __future__ import annotations

from gpulab.analysis.steps.largest_operators import OperatorCost, largest_operators
from gpulab.rules import Diagnosis
from gpulab.views.sheet.sheet import Row, Section, TableBlock
from gpulab.wording import Scale, number, percent, scale

_MOST_ROWS = 8
_MIN_FRAC = 0.02  # of a step: smaller operators are summed up


def operator_section(diagnosis: Diagnosis) -> Section | None:
    """Return the table; None if the trace has no operators, or none of them takes 2 % of a step."""
    if diagnosis.ledger is None or diagnosis.steps.step_ns is None:
        return None
    operators = largest_operators(diagnosis.run, diagnosis.steps, diagnosis.ledger)
    largest = [cost for cost in operators[:_MOST_ROWS] if cost.frac >= _MIN_FRAC]
    if not largest:
        return None
    rest = operators[len(largest) :]
    others = OperatorCost(
        name=f"{len(rest):,} other kinds of operators",
        calls_per_step=sum(cost.calls_per_step for cost in rest),
        frac=sum(cost.frac for cost in rest),
    )
    unit = scale(diagnosis.steps.step_ns, figures=4)
    table = TableBlock(
        header=("", "calls per step", f"{unit.unit} per step", "share"),
        rows=tuple(_row(cost, unit, diagnosis.steps.step_ns) for cost in (*largest, *([others] if rest else []))),
        caption=_caption(diagnosis),
    )
    return Section("Operators that take the most time", (table,), folded=True)


def _row(cost: OperatorCost, unit: Scale, step_ns: float) -> Row:
    return Row((cost.name, number(cost.calls_per_step), unit.number(cost.frac * step_ns), percent(cost.frac, 1)))


def _caption(diagnosis: Diagnosis) -> str:
    backward = "Nodes of the backward pass are named like AddmmBackward0."
    if diagnosis.run.source.how == "virtual":
        backward = "Operators of the backward pass have no aten:: in front of their names."
    if diagnosis.ledger is not None and diagnosis.ledger.device == "cpu":
        return (
            "Mean of the complete traced steps, without the time that the profiler adds. The time of an operator "
            "includes the operators that it calls; the time of an optimizer step includes its Python code, too. "
            f"{backward}"
        )
    return (
        "GPU time of the kernels of each operator, including operators that it calls; mean of the complete steps. "
        f"{backward} Kernels that overlap count in full for each operator."
    )
