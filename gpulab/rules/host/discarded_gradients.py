"""A rule about gradients that backward passes for one optimizer compute of another one's parameters."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.wording import count, percent

_MIN_FRAC = 0.06  # of the time of all steps
_MAX_FRAC = 0.95
# What goes away as a multiple of the measured part of the backward passes: at worst, at best, and at most. The forward
# pass no longer saves activations. On a GPU, the share is that of the host's time.
_REMOVED = (0.8, 1.7, 2.4)
_REMOVED_ON_GPU = (0.4, 1.5, 3.0)


def discarded_gradients(evidence: Evidence) -> Finding | None:
    """Backward passes for one optimizer also run through another optimizer's model, and these gradients are deleted.

    Proof: at each update, the gradients of all optimizers are compared. Backward passes before the steps of one
    optimizer add gradients to the parameters of another one, and zero_grad() deletes them before that one steps. In
    some iterations, hooks on parameters measure how long a backward pass runs on behind the gradients that are
    used.

    Confused with: one loss for several optimizers, which use their gradients; a generator's loss, which must run
    backward through the discriminator; gradients that no optimizer uses at all (`unused_gradients`).

    What to do: call detach() on the output of the other model before this loss uses it, or compute that output under
    torch.no_grad() if nothing else needs its graph. retain_graph=True may then be unnecessary, too.
    """
    discarded = [entry for entry in evidence.run.discarded_gradients if entry.step_frac]
    if not discarded or not evidence.is_training:
        return None
    first = discarded[0]
    frac = min(_MAX_FRAC, sum(entry.step_frac or 0.0 for entry in discarded))
    worst, best, most = (min(_MAX_FRAC, frac * part) for part in (_REMOVED_ON_GPU if evidence.on_gpu else _REMOVED))
    if frac < _MIN_FRAC:
        return None
    cost_ns = round(frac * evidence.step_ns)
    model = first.model or "another optimizer's model"
    passes = f"{count(first.passes or 1, 'backward pass', 'backward passes')}"
    optimizer = f" of {first.optimizer}" if first.optimizer else ""
    return Finding(
        claim=f"{percent(frac)} {step_or_recording(evidence)} goes to gradients of {model} that zero_grad() deletes: "
        f"the loss{optimizer} also runs backward through {model}.",
        evidence=(
            f"{step_spends(evidence, cost_ns)} on this part of the backward passes"
            f"{f' at {first.location}' if first.location else ''}.",
            f"Between two updates of {model}, {passes} for updates{optimizer} computed gradients of {model}, and "
            "zero_grad() deleted them before they were used.",
        ),
        numbers=known_numbers(step_frac=frac, cost_ns=cost_ns, passes=first.passes),
        advice=f"Call detach() on the output of {model} before this loss uses it, or compute it under torch.no_grad() "
        "if nothing else needs its graph. If these gradients are meant to be used, zero_grad() deletes them too early.",
        gain=evidence.gain_of_removing(
            round(most * evidence.step_ns),
            f"backward passes that end before {model}",
            "none of this work, nor that of saving activations",
            (worst / most, best / most),
        ),
        confidence=SUSPECT if evidence.on_gpu else LIKELY,
    )
