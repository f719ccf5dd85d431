"""Matrix products and convolutions that the CPU computes, in the loop itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.host.syncs import holds_call
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, intersect, merged
from gpulab.run import Run
from gpulab.tables import Kind

# Operators that do the arithmetic of layers; on a GPU each of them holds a launch call.
MATH = (
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::linear", "aten::einsum"),
    *("aten::convolution", "aten::convolution_backward", "aten::mkldnn_convolution", "aten::_slow_conv2d_forward"),
    *("aten::lstm", "aten::gru", "aten::mkldnn_rnn_layer", "aten::scaled_dot_product_attention", "aten::embedding_bag"),
    *("mkldnn::_linear_pointwise", "mkldnn::_convolution_pointwise"),
)
LONG_NS = 100_000  # shorter ones are of no weight, wherever they run


@dataclass(frozen=True, kw_only=True)
class CpuMath:
    """Per typical step: the time of such operators in which the device, if there is one, does nothing."""

    count: int
    exposed_ns: int
    spans: Spans


def cpu_math(run: Run, steps: Steps, ledger: Ledger) -> CpuMath | None:
    """What layers cost that the CPU computes; None where there are none. What a DataLoader does is not counted."""
    events = run.event_rows
    index = np.flatnonzero(
        events.matching(MATH.__contains__) & (events["kind"] == Kind.OP) & (events["dur_ns"] >= LONG_NS)
    )
    ops = in_interior(events.where(index), steps)
    ops = ops.where(outermost(ops))
    if len(ops):
        ops = ops.where(~holds_call(run, ops))
    if not len(ops):
        return None
    idle = merged(*(ledger.spans[part.key] for part in ledger.parts if not part.busy and part.key != "loader"))
    alone = merged(idle, ledger.spans["compute"]) if ledger.device == "cpu" else idle
    spans = intersect(alone, ops.spans())
    return CpuMath(
        count=max(1, round(len(ops) / int(steps.interior.sum()))),
        exposed_ns=steps.typical_covered_ns(spans),
        spans=spans,
    )
