"""Operators and Python that a loop runs outside its models, the optimizer and the DataLoader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.cpu_math import LAYER_OPS
from gpulab.analysis.kernels.optimizers import optimizer_steps
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.forward_backward import forward_backward_spans
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, intersect, no_spans, subtract, union, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

_CLEARING = "Optimizer.zero_grad#"
# Parts of the ledger in which the host works on operators. Long Python gaps, waits and loading have their own rules.
HOST_PARTS = ("dispatch", "launch", "glue")
CPU_PARTS = ("compute", "dispatch", "glue")
_NAMES = 3


@dataclass(frozen=True, kw_only=True)
class OutsideModel:
    """What a typical interior step spends outside; on a GPU, with the GPU idle."""

    cost_ns: int
    operators: int  # calls that are in no other operator
    names: tuple[str, ...]  # the most expensive of them
    spans: Spans
    python: Spans  # long Python gaps between the same forward passes, backward passes and updates


def outside_model(run: Run, steps: Steps, ledger: Ledger) -> OutsideModel | None:
    """Measure it; None if no backward pass was recorded, because the model is then unknown."""
    passes = forward_backward_spans(run)
    if passes is None or not steps.interior.any():
        return None
    events = run.event_rows
    is_other = events.is_kind(EventKind.LOADER) | events.matching(lambda word: word.startswith(_CLEARING))
    training = union_of(passes, optimizer_steps(run).spans(), events.select(np.flatnonzero(is_other)).spans())
    ops = events.select(np.flatnonzero(events.is_kind(EventKind.OP) & (events["thread"] == run.main_thread)))
    outside = subtract(steps.interior_spans, training)
    outside = subtract(outside, _inference(ops, outside))
    parts = CPU_PARTS if ledger.device == "cpu" else HOST_PARTS
    work = union_of(*(ledger.spans[part] for part in parts if part in ledger.spans))
    spans = intersect(work, outside)
    ops = ops.select(np.flatnonzero(outermost(ops)))
    index = np.searchsorted(outside.start_ns, ops["start_ns"], side="right") - 1
    inside = (
        (index >= 0) & (ops["start_ns"] < outside.end_ns[np.maximum(index, 0)]) if len(outside.end_ns) else index > 0
    )
    ops = ops.select(np.flatnonzero(inside))
    places = np.unique(index[inside])
    return OutsideModel(
        cost_ns=steps.typical_covered_ns(spans),
        operators=round(len(ops) / max(1, int(steps.interior.sum()))),
        names=most_expensive(ops),
        spans=spans,
        python=intersect(ledger.spans["python"], Spans(outside.start_ns[places], outside.end_ns[places])),
    )


def most_expensive(ops: Rows) -> tuple[str, ...]:
    """Return the names of the operators that take most of the time."""
    spent_ns: Counter[str] = Counter()
    for name, dur_ns in zip(ops.text("name").to_list(), ops["dur_ns"].tolist(), strict=True):
        spent_ns[name or ""] += dur_ns
    return tuple(name for name, _ in spent_ns.most_common(_NAMES))


def _inference(ops: Rows, outside: Spans) -> Spans:
    """Return the forward passes without gradients: of a frozen part, a teacher, a target network.

    They last from the first to the last layer (matrix product, convolution) in each part of the time outside.
    """
    layers = ops.select(np.flatnonzero(ops.matching(LAYER_OPS.__contains__)))
    start_ns, end_ns = layers["start_ns"], layers["start_ns"] + layers["dur_ns"]
    part = np.searchsorted(outside.start_ns, start_ns, side="right") - 1
    inside = part >= 0
    inside[inside] &= start_ns[inside] < outside.end_ns[part[inside]]
    start_ns, end_ns, part = start_ns[inside], end_ns[inside], part[inside]
    if not len(part):
        return no_spans()
    first_ns = np.full(len(outside.start_ns), np.iinfo(np.int64).max)
    last_ns = np.zeros(len(outside.start_ns), np.int64)
    np.minimum.at(first_ns, part, start_ns)
    np.maximum.at(last_ns, part, end_ns)
    return union(first_ns, last_ns)
