"""A rule about modules that compute the same outputs several times in a step."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import sentences, step_or_recording, step_spends
from gpulab.run import RepeatedInputs
from gpulab.wording import count, percent

_MIN_SHARE, _MOST_SHARE = 0.1, 0.95  # of a step, with the backward pass
_MOST_LISTED = 4  # modules
_WITH_BACKWARD = 3  # a backward pass takes up to twice as long as its forward pass
# Removed at worst and at best. Autograd adds up gradients before the one backward pass that is left.
_REMOVED = (0.7, 1.0)
_REMOVED_WITH_BACKWARD = (0.5, 0.95)


def repeated_inputs(evidence: Evidence) -> Finding | None:
    """A module computes the same outputs several times in a step: its input, or many rows of it, occurred before.

    Proof: in two steps, each call of a module was noted. It got the same tensors as in an earlier call of the step,
    unchanged, and had the same weights; or most rows of its only input were copies of others. On a CPU, its outputs
    were equal, too. Dropout in train mode and activation checkpointing do not count.

    Confused with: two passes with different dropout masks; a frozen model, which repeats its work in every epoch rather
    than within a step (`frozen_outputs`); small calls whose inputs differ (`unbatched_calls`).

    What to do: call the module once before the loop, and reuse its output; take the predictions for a metric from the
    outputs that the loss uses. For equal rows: pass each row once, and repeat the outputs. Gradients stay the same.
    """
    repeated = [work for work in evidence.run.repeated_inputs if work.calls and work.step_frac and work.step_frac < 1]
    if not repeated:
        return None
    work, share = max(repeated, key=_share), min(_MOST_SHARE, sum(map(_share, repeated)))
    forward_frac = min(_MOST_SHARE, sum(each.step_frac or 0.0 for each in repeated))
    forward_ns = round(forward_frac * evidence.step_ns)
    if share < _MIN_SHARE:
        return None
    subject = f"{work.name} ({work.kind})" if work.name else work.kind
    others = f" and {count(len(repeated) - 1, 'other module')}" if len(repeated) > 1 else ""
    is_proven = not evidence.on_gpu
    return Finding(
        claim=f"{percent(forward_frac)} {step_or_recording(evidence)} goes to forward passes of {subject}{others} that "
        "compute the same outputs as before in the same step"
        f"{', and more to their backward passes' * work.with_gradient}.",
        evidence=(
            f"{_calls(work)}{f' at {work.location}' if work.location else ''}; weights do not change within a step"
            f"{', and the outputs were equal' * is_proven}.",
            f"{step_spends(evidence, forward_ns)} on these forward passes.",
            *(f"{each.name or each.kind}: {_calls(each)}." for each in repeated[:_MOST_LISTED] if each is not work),
        ),
        numbers=known_numbers(
            calls=work.calls, step_frac=forward_frac, distinct_frac=work.distinct_frac, forward_ns=forward_ns
        ),
        advice=_advice(work, subject),
        gain=evidence.gain_of_removing(
            round(share * evidence.step_ns),
            "computing each output once"
            + ", which also removes up to twice as much backward pass" * work.with_gradient,
            f"none of these calls{', nor their backward passes' * work.with_gradient}",
            _REMOVED_WITH_BACKWARD if work.with_gradient else _REMOVED,
        ),
        confidence=LIKELY if is_proven else SUSPECT,
    )


def _share(work: RepeatedInputs) -> float:
    """Return the share of a step that goes to the repeated work, with its backward pass."""
    return (work.step_frac or 0.0) * (_WITH_BACKWARD if work.with_gradient else 1)


def _calls(work: RepeatedInputs) -> str:
    calls = count(work.calls or 0, "call")
    if work.distinct_frac is None:
        return f"{calls} per step with the same unchanged input as an earlier one"
    return f"{calls} per step in which {percent(1 - work.distinct_frac)} of the rows are copies of other rows"


def _advice(work: RepeatedInputs, subject: str) -> str:
    if work.distinct_frac is None:
        return (
            f"Call {subject} once per input, before the loop or where the loss is computed, and use that output "
            "everywhere. For a metric, use output.detach(). Gradients add up as before."
        )
    return sentences(
        f"Pass each distinct row to {subject} once, and repeat the outputs: if rows are repeated with "
        "repeat_interleave(), repeat() or expand(), do that after the call instead of before it.",
        "Otherwise: rows, index = inputs.unique(dim=0, return_inverse=True); outputs = module(rows)[index]. "
        "Gradients stay the same, unless the module mixes rows, as BatchNorm does in train mode.",
    )
