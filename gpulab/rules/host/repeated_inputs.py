"""A rule about modules that compute the same outputs several times in a step."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import sentences, step_or_recording, step_spends
from gpulab.run import RepeatedInputs
from gpulab.wording import count, percent

_MIN_SHARE, _MOST_SHARE = 0.06, 0.95  # of a step that goes away: at worst, and at most
_MOST_LISTED = 4  # modules
# What goes away as a multiple of the time of the forward passes: at worst, at best, and at most. With gradients, three
# loops on a CPU measured 2.8, 3.1 and 3.7; without, one measured 1.5, as other work finds its data in the caches then.
_REMOVED = (0.7, 1.3, 1.7)
_REMOVED_WITH_BACKWARD = (1.5, 3.3, 5.0)


def repeated_inputs(evidence: Evidence) -> Finding | None:
    """A module computes the same outputs several times in a step: its input, or many rows of it, occurred before.

    Proof: in two steps, each call of a module was noted. It got the same tensors as in an earlier call of the step,
    unchanged, and had the same weights; or most rows of its only input were copies of others. On a CPU, samples of
    its outputs were equal, too. Dropout in train mode and activation checkpointing do not count.

    Confused with: two passes with different dropout masks; a frozen model, which repeats its work in every epoch rather
    than within a step (`frozen_outputs`); small calls whose inputs differ (`unbatched_calls`).

    What to do: call the module once before the loop, and reuse its output; take the predictions for a metric from the
    outputs that the loss uses. For equal rows: pass each row once, and repeat the outputs. Gradients stay the same.
    """
    repeated = [work for work in evidence.run.repeated_inputs if work.calls and work.step_frac and work.step_frac < 1]
    if not repeated:
        return None
    work = max(repeated, key=lambda each: _removed(each)[1])
    worst, best, most = (min(_MOST_SHARE, sum(shares)) for shares in zip(*map(_removed, repeated), strict=True))
    forward_frac = min(_MOST_SHARE, sum(each.step_frac or 0.0 for each in repeated))
    forward_ns = round(forward_frac * evidence.step_ns)
    if worst < _MIN_SHARE:
        return None
    subject = f"{work.name} ({work.kind})" if work.name else work.kind
    others = f" and {count(len(repeated) - 1, 'other module')}" if len(repeated) > 1 else ""
    is_compared = not evidence.on_gpu
    return Finding(
        claim=f"{percent(forward_frac)} {step_or_recording(evidence)} goes to forward passes of {subject}{others} that "
        "compute the same outputs as before in the same step"
        f"{', and more to their backward passes' * work.with_gradient}.",
        evidence=(
            f"{_calls(work)}; weights do not change within a step"
            f"{', and samples of the outputs were equal' * is_compared}.",
            f"{step_spends(evidence, forward_ns)} on these forward passes.",
            *(f"{each.name or each.kind}: {_calls(each)}." for each in repeated[:_MOST_LISTED] if each is not work),
        ),
        numbers=known_numbers(
            calls=work.calls, step_frac=forward_frac, distinct_frac=work.distinct_frac, forward_ns=forward_ns
        ),
        advice=_advice(work, subject),
        gain=evidence.gain_of_removing(
            round(most * evidence.step_ns),
            f"computing each output once{', and its gradient, which takes about twice as long' * work.with_gradient}",
            f"none of these calls{', nor their backward passes' * work.with_gradient}",
            (worst / most, best / most),
        ),
        confidence=LIKELY if is_compared else SUSPECT,
        # A second pass without gradients looks like that of a frozen model with the same layers.
        explains=() if work.with_gradient else ("frozen_outputs",),
    )


def _removed(work: RepeatedInputs) -> list[float]:
    """Return the share of a step that goes away with the repeated work: at worst, at best, and at most."""
    multiples = _REMOVED_WITH_BACKWARD if work.with_gradient else _REMOVED
    return [(work.step_frac or 0.0) * multiple for multiple in multiples]


def _calls(work: RepeatedInputs) -> str:
    calls = f"{count(work.calls or 0, 'call')} per step{f' at {work.location}' if work.location else ''}"
    if work.distinct_frac is None:
        return f"{calls} with the same unchanged input as an earlier call"
    return f"{calls} in which {percent(1 - work.distinct_frac)} of the rows are copies of other rows"


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
