"""A rule about a frozen model that computes the same outputs in every epoch."""

from __future__ import annotations

from gpulab.analysis.data.training_loader import passes_over_data
from gpulab.analysis.steps.frozen_forward import FrozenForward, frozen_forward
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import sentences, step_or_recording, step_spends
from gpulab.wording import percent

_MIN_SHARE = 0.15  # of a step
_REMOVED = (0.7, 0.95)  # stored outputs are loaded instead, and may be larger than the inputs


def frozen_outputs(evidence: Evidence) -> Finding | None:
    """A frozen model, such as a backbone or a teacher, runs in every step, and its outputs could be stored.

    Proof: no optimizer has its parameters, and these did not change during the run. Its layers run in every step and
    have no nodes in the backward pass.

    Confused with: target networks and moving averages, whose weights change; adapters, where the backward pass goes
    through the frozen layers. The recording does not show whether an input is the same in every epoch: with random
    augmentation, outputs differ.

    What to do: if inputs repeat, compute the outputs once, in eval mode and under torch.inference_mode(), and train on
    them. In transfer learning, the head then trains on stored features; in distillation, on stored logits.
    """
    forward = evidence.cached(frozen_forward)
    if forward is None or not forward.models or any(loader.iterable for loader in evidence.run.loaders):
        return None
    forward_ns = evidence.unprofiled_ns(forward.forward_ns, "compute", "dispatch")
    share = forward_ns / evidence.step_ns
    if share < _MIN_SHARE:
        return None
    names = " and ".join(model.name for model in forward.models)
    passes = passes_over_data(evidence.run)
    return Finding(
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to forward passes of {names}, whose weights do not "
        "change: the same input gives the same output in every epoch.",
        evidence=(
            f"{step_spends(evidence, forward_ns)} in {forward.calls:,} layers of {names}, which have no backward pass. "
            "No optimizer has their weights, and these did not change in this run.",
        ),
        numbers=known_numbers(share=share, forward_ns=forward_ns, calls=forward.calls, passes=passes),
        advice=_advice(forward, names),
        gain=evidence.gain_of_removing(
            forward_ns,
            "loading stored outputs, which removes 70 to 95 % of these forward passes from the second epoch on",
            "no forward pass of a frozen model",
            _REMOVED,
        ),
        confidence=LIKELY if passes and passes > 1 and not _depends_on_batch(forward) else SUSPECT,
        spans=forward.spans,
    )


def _advice(forward: FrozenForward, names: str) -> str:
    return sentences(
        f"{names} is in train mode, so that outputs depend on the batch: call eval() first."
        * _depends_on_batch(forward),
        f"If the data has no random augmentation: run {names} over the dataset once under torch.inference_mode(), keep "
        "the outputs in a tensor or a file, and train on torch.utils.data.TensorDataset(outputs, targets). With "
        "augmentation, store the outputs of a few augmented copies.",
    )


def _depends_on_batch(forward: FrozenForward) -> bool:
    return any(model.depends_on_batch for model in forward.models)
