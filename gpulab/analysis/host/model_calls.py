"""How often the layers of the trained models run in a step: a Python loop may call a model for one item at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import batches_per_step
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.forward_backward import backward_passes
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import covered_ns, no_spans
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

# Layers with weights. Products of activations, as in attention, say nothing about the number of calls, and a recurrent
# layer is one call for all time steps.
_LAYER_OPS = (
    *("aten::linear", "aten::addmm", "aten::mm", "aten::embedding", "aten::conv1d", "aten::conv2d", "aten::conv3d"),
    *("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::embedding_bag"),
    *("aten::lstm_cell", "aten::gru_cell", "aten::lstm", "aten::gru"),
)
_LAYER_NODE = re.compile(r": (Addmm|Mm|Linear|Embedding|Convolution|Lstm|Gru|\w*Rnn)\w*Backward\d*$")


@dataclass(frozen=True, kw_only=True)
class ModelCalls:
    """Calls of layers in a typical step: forward passes with gradient."""

    calls: int  # per batch, if a step accumulates several
    tensors: int  # parameters of the trained models
    median_ns: int  # median duration of a call on the host
    batches: int  # of the DataLoader per step; 1 without one

    @property
    def least_passes(self) -> int:
        """The least number of forward passes per batch: a layer has at least one parameter."""
        return self.calls // self.tensors


@dataclass(frozen=True, kw_only=True)
class CallsBetween:
    """Calls of layers in code between the ordinary steps, such as a rollout."""

    calls: int  # in all recorded parts of that code
    recorded_ns: int  # how long these parts are
    tensors: int  # parameters of the trained models
    median_ns: int  # median duration of a call on the host


def model_calls(run: Run, steps: Steps, _ledger: Ledger) -> ModelCalls | None:
    """Count the calls of layers; None if no model is trained."""
    tensors, passes = _trained_tensors(run), backward_passes(run)
    forward = rows_in_interior(forward_calls(run), steps)
    if not tensors or passes is None or not len(forward):
        return None
    # A model in front of the trained layers that is not frozen takes part in the backward pass, too.
    tensors = max(tensors, passes.typical_gradients(steps))
    is_layer = passes.nodes.matching(lambda word: bool(_LAYER_NODE.search(word)))
    layer_nodes = rows_in_interior(passes.nodes.select(is_layer), steps)
    count, batches = max(1, int(steps.interior.sum())), batches_per_step(run, steps)
    # A frozen model or a target network has no nodes in the backward pass.
    with_gradient = min(len(forward), len(layer_nodes))
    return ModelCalls(
        calls=round(with_gradient / count / batches),
        tensors=tensors,
        median_ns=int(np.median(forward["dur_ns"])),
        batches=batches,
    )


def calls_between_steps(run: Run, steps: Steps, _ledger: Ledger) -> CallsBetween | None:
    """Count the calls of layers in the recorded windows outside the complete steps; None if there are none.

    A window begins and ends within a step, so these parts also hold up to two ordinary steps.
    """
    forward, windows = forward_calls(run), run.recording.windows_ns
    between = forward.select(~steps.interior_mask(forward["start_ns"]))
    recorded_ns = sum(end - start for start, end in windows) - int(steps.dur_ns[steps.interior].sum())
    tensors = _trained_tensors(run)
    if not len(between) or recorded_ns <= 0 or not tensors:
        return None
    return CallsBetween(
        calls=len(between), recorded_ns=recorded_ns, tensors=tensors, median_ns=int(np.median(between["dur_ns"]))
    )


def _trained_tensors(run: Run) -> int:
    in_models = sum(model.tensors or 0 for model in run.models)
    return max(in_models, sum(optimizer.tensors or 0 for optimizer in run.optimizers))


def forward_calls(run: Run) -> Rows:
    """Return the outermost calls of layers on the main thread that are no part of a backward pass."""
    events = run.event_rows
    is_layer = events.matching(_LAYER_OPS.__contains__) & events.is_kind(EventKind.OP)
    ops = events.select(np.flatnonzero(is_layer & (events["thread"] == run.main_thread)))
    if not len(ops):
        return ops
    ops, passes = ops.select(outermost(ops)), backward_passes(run)
    inside = no_spans() if passes is None else passes.nodes.spans()
    return ops.select(covered_ns(inside, ops["start_ns"], ops["start_ns"] + 1) == 0)
