"""A rule about gradients of one optimizer's parameters that backward passes for another one compute."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.run import DiscardedGradients
from gpulab.wording import count, percent

_MIN_FRAC = 0.06  # of the time of all steps
_MAX_FRAC = 0.95
# What goes away as a multiple of the measured part of the backward passes: at worst, at best, and at most. The forward
# pass no longer saves activations. On a GPU, the share is that of the host's time.
_REMOVED = (0.8, 1.7, 2.4)
_REMOVED_ON_GPU = (0.4, 1.5, 3.0)
# The same if the backward passes have to run through the model, and compute the gradients of its inputs.
_WEIGHTS_REMOVED = (0.3, 0.9, 2.0)


def discarded_gradients(evidence: Evidence) -> Finding | None:
    """Backward passes for one optimizer also compute gradients of another one's parameters, and these are deleted.

    Proof: at each update, the gradients of all optimizers are compared. Backward passes before the steps of one
    optimizer add gradients to the parameters of another one, and zero_grad() deletes them before that one steps. In
    some iterations, hooks on parameters measure how long the part of a backward pass takes that computes them. It lies
    behind the gradients that are used, as where a discriminator's loss also runs backward through the generator. Or it
    lies before them: a generator's loss has to run through the discriminator, an actor's loss through the critic, but
    needs no gradients of their weights.

    Confused with: one loss for several optimizers, which use their gradients; gradients that no optimizer uses at all
    (`unused_gradients`).

    What to do: in the first case, call detach() on the output of the other model before this loss uses it, or compute
    that output under torch.no_grad() if nothing else needs its graph. retain_graph=True may then be unnecessary, too.
    In the second case, call requires_grad_(False) on the other model before the forward pass for this loss, and
    requires_grad_(True) after its backward pass.
    """
    if not evidence.is_training:
        return None
    entries = [entry for entry in evidence.run.discarded_gradients if entry.step_frac]
    cases = [
        _finding(evidence, [entry for entry in entries if entry.passed_through is passed_through])
        for passed_through in (False, True)
    ]
    return min(filter(None, cases), key=lambda finding: finding.gain.worst_ns if finding.gain else 0, default=None)


def _finding(evidence: Evidence, discarded: list[DiscardedGradients]) -> Finding | None:
    """Return the finding for gradients that all lie behind those that are used, or all before them."""
    frac = min(_MAX_FRAC, sum(entry.step_frac or 0.0 for entry in discarded))
    if frac < _MIN_FRAC:
        return None
    first = discarded[0]
    removed = _WEIGHTS_REMOVED if first.passed_through else _REMOVED_ON_GPU if evidence.on_gpu else _REMOVED
    worst, best, most = (min(_MAX_FRAC, frac * part) for part in removed)
    cost_ns = round(frac * evidence.step_ns)
    model, passes = _model(first), count(first.passes or 1, "backward pass", "backward passes")
    optimizer = f" of {first.optimizer}" if first.optimizer else ""
    return Finding(
        claim=_claim(evidence, first, percent(frac), optimizer),
        evidence=(
            f"{step_spends(evidence, cost_ns)} on this part of the backward passes"
            f"{f' at {first.location}' if first.location else ''}.",
            f"Between two updates of {model}, {passes} for updates{optimizer} computed gradients of {model}, and "
            "zero_grad() deleted them before they were used.",
        ),
        numbers=known_numbers(step_frac=frac, cost_ns=cost_ns, passes=first.passes),
        advice=_frozen_advice(first) if first.passed_through else _detached_advice(model),
        gain=evidence.gain_of_removing(
            round(most * evidence.step_ns),
            f"backward passes without gradients of {model}"
            if first.passed_through
            else f"backward passes that end before {model}",
            "none of this work, nor that of saving activations",
            (worst / most, best / most),
        ),
        confidence=SUSPECT if evidence.on_gpu else LIKELY,
    )


def _model(gradients: DiscardedGradients) -> str:
    owner = f"the parameters of {gradients.owner}" if gradients.owner else "another optimizer's model"
    return gradients.model or owner


def _claim(evidence: Evidence, gradients: DiscardedGradients, share: str, optimizer: str) -> str:
    model, step = _model(gradients), step_or_recording(evidence)
    if gradients.passed_through:
        return (
            f"{share} {step} goes to backward passes{optimizer} through {model}, which also compute gradients of its "
            "weights, and zero_grad() deletes these."
        )
    return (
        f"{share} {step} goes to gradients of {model} that zero_grad() deletes: the loss{optimizer} also runs backward "
        f"through {model}."
    )


def _detached_advice(model: str) -> str:
    return (
        f"Call detach() on the output of {model} before this loss uses it, or compute it under torch.no_grad() if "
        "nothing else needs its graph. If these gradients are meant to be used, zero_grad() deletes them too early."
    )


def _frozen_advice(gradients: DiscardedGradients) -> str:
    """Return how to compute no gradients of weights where only those of inputs are needed."""
    when = "before the forward pass for this loss", "after its backward pass"
    if gradients.model:
        off, on = (f"{gradients.model}.requires_grad_({value})" for value in (False, True))
        return f"Call {off} {when[0]}, and {on} {when[1]}: the gradients of its inputs are still computed."
    return (
        f"Set requires_grad of {_model(gradients)} to False {when[0]}, and to True {when[1]}: the gradients of inputs "
        "are still computed."
    )
