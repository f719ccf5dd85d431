"""Gradients that the backward pass computes and that no optimizer uses."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.forward_backward import backward_passes
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans
from gpulab.run import Run

_REENTRANT = "CheckpointFunctionBackward"  # the inputs of such a block get gradients, too; how many is unknown


@dataclass(frozen=True, kw_only=True)
class UnusedGradients:
    """Gradients per backward pass, and the time of the backward passes in a typical step."""

    computed: int  # parameter tensors that receive a gradient in a typical backward pass
    updated: int  # parameter tensors of all optimizers
    backward_ns: int
    spans: Spans  # of the backward passes

    @property
    def unused_frac(self) -> float:
        """The share of the parameter tensors whose gradients are not used."""
        return 1 - self.updated / self.computed


def unused_gradients_of(run: Run, steps: Steps, _ledger: Ledger) -> UnusedGradients | None:
    """Compare the gradients that are computed with those that are used; None if all are, or if that is unknown."""
    updated = sum(optimizer.tensors or 0 for optimizer in run.optimizers)
    passes = backward_passes(run)
    if passes is None or not updated or any(optimizer.tensors is None for optimizer in run.optimizers):
        return None
    computed = passes.typical_gradients(steps)
    if computed <= updated or passes.count_nodes(lambda word: word.endswith(_REENTRANT)).any():
        return None
    return UnusedGradients(
        computed=computed, updated=updated, backward_ns=steps.typical_covered_ns(passes.spans), spans=passes.spans
    )
