"""A rule about activation checkpointing, which computes forward passes twice to save memory."""

from __future__ import annotations

from gpulab.analysis.memory.recomputed_forward import recomputed_forward_spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.wording import percent

_MIN_SHARE = 0.10  # of a step
_REALISED = (0.7, 1.0)  # keeping the activations costs memory traffic


def activation_checkpointing(evidence: Evidence) -> Finding | None:
    """The backward pass runs forward passes again: activation checkpointing saves memory and costs time.

    Proof: within nodes of the autograd graph, operators run that only modules call, such as `aten::linear` or
    `aten::layer_norm`. Gradient formulas do not call them.

    Confused with: a backward pass that is slow by itself; gradients of gradients, as in meta-learning, which have their
    own nodes.

    What to do: if the memory suffices without checkpointing, switch it off, or use it for fewer blocks.
    """
    spans = recomputed_forward_spans(evidence.run)
    again_ns = evidence.steps.typical_covered_ns(spans)
    share = evidence.step_share(again_ns)
    if share < _MIN_SHARE:
        return None
    return Finding(
        claim=f"{percent(share)} {step_or_recording(evidence)} computes forward passes again: activation checkpointing "
        "is on.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(again_ns))} on forward operators within the backward pass.",
        ),
        numbers=known_numbers(exposed_frac=share, exposed_ns=again_ns),
        advice="If the memory suffices, call the blocks without torch.utils.checkpoint, or checkpoint fewer of them. "
        "In Transformers: gradient_checkpointing=False in TrainingArguments, or "
        "model.gradient_checkpointing_disable().",
        gain=None if evidence.on_gpu else _gain(evidence, again_ns),
        confidence=LIKELY,
        spans=spans,
        caveats=("Without checkpointing, the activations of these blocks stay in memory until the backward pass.",),
    )


def _gain(evidence: Evidence, again_ns: int) -> Gain:
    return evidence.gain_of_removing(
        evidence.unprofiled_ns(again_ns),
        "keeping the activations, which removes 70 to 100 % of the repeated forward passes",
        "no repeated forward passes",
        _REALISED,
    )
