"""Matrix products, convolutions and dropout that the loop computes on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.host.syncs import contains_runtime_call
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, intersect, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

_RECURRENT = ("aten::lstm", "aten::gru")
# Operators that compute layers; on a GPU each of them contains a launch call.
LAYER_OPS = (
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::linear", "aten::einsum"),
    *("aten::convolution", "aten::convolution_backward", "aten::mkldnn_convolution", "aten::_slow_conv2d_forward"),
    *("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward", *_RECURRENT),
    *("aten::scaled_dot_product_attention", "aten::embedding_bag"),
    *("mkldnn::_linear_pointwise", "mkldnn::_convolution_pointwise"),
)
_MADE_OF_OTHERS = (*_RECURRENT, "aten::scaled_dot_product_attention")
_FUSED_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
# Those that run faster in bfloat16. Without oneDNN's layer, recurrent layers are made of many small products; attention
# with dropout is made of products, a softmax and the dropout.
BFLOAT16_OPS = (
    *(name for name in LAYER_OPS if name not in (*_MADE_OF_OTHERS, "aten::embedding_bag")),
    *(_FUSED_ATTENTION, f"{_FUSED_ATTENTION}_backward"),
)
IMAGE_CONVOLUTION_OPS = tuple(name for name in LAYER_OPS if "conv" in name and not name.startswith("mkldnn::"))
LONG_NS = 100_000  # shorter ones do not matter


@dataclass(frozen=True, kw_only=True)
class CpuMath:
    """Such operators per typical step, and the time in which the GPU, if there is one, is idle during them."""

    count: int
    exposed_ns: int
    spans: Spans


def cpu_math(run: Run, steps: Steps, ledger: Ledger) -> CpuMath | None:
    """Compute the cost of layers that run on the CPU, without DataLoader code; None if there are none."""
    return _cost_of(LAYER_OPS, run, steps, ledger)


def bfloat16_layers(run: Run, steps: Steps, ledger: Ledger) -> CpuMath | None:
    """Compute the cost of layers on the CPU that run faster in bfloat16; None if there are none."""
    return _cost_of(BFLOAT16_OPS, run, steps, ledger)


def convolutions(run: Run, steps: Steps, ledger: Ledger) -> CpuMath | None:
    """Compute the cost of eager convolutions on the CPU; None if there are none."""
    return _cost_of(IMAGE_CONVOLUTION_OPS, run, steps, ledger)


def dropouts(run: Run, steps: Steps, ledger: Ledger) -> CpuMath | None:
    """Compute the cost of dropout on the CPU, but not of that within other operators, such as attention."""
    events = run.event_rows
    ops = rows_in_interior(events.select(np.flatnonzero(events.is_kind(EventKind.OP))), steps)
    ops = ops.select(outermost(ops))
    return _cost(ops.select(np.flatnonzero(ops.matching("aten::dropout".__eq__))), run, steps, ledger)


def _cost_of(names: tuple[str, ...], run: Run, steps: Steps, ledger: Ledger) -> CpuMath | None:
    events = run.event_rows
    index = np.flatnonzero(
        events.matching(names.__contains__) & events.is_kind(EventKind.OP) & (events["dur_ns"] >= LONG_NS)
    )
    ops = rows_in_interior(events.select(index), steps)
    return _cost(ops.select(outermost(ops)), run, steps, ledger)


def _cost(ops: Rows, run: Run, steps: Steps, ledger: Ledger) -> CpuMath | None:
    if len(ops):
        ops = ops.select(~contains_runtime_call(run, ops))
    if not len(ops):
        return None
    idle = union_of(*(ledger.spans[part.key] for part in ledger.parts if not part.busy and part.key != "loader"))
    not_overlapped = union_of(idle, ledger.spans["compute"]) if ledger.device == "cpu" else idle
    spans = intersect(not_overlapped, ops.spans())
    return CpuMath(
        count=max(1, round(len(ops) / int(steps.interior.sum()))),
        exposed_ns=steps.typical_covered_ns(spans),
        spans=spans,
    )
