"""A rule about gradients that no optimizer uses."""

from __future__ import annotations

from gpulab.analysis.host.gradients import unused_gradients_of
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import duration_in_step
from gpulab.wording import count, percent

_MIN_UNUSED_FRAC = 0.25  # of the gradients; a few more than the optimizer's may be inputs that need gradients
_MIN_UNUSED = 4
_MIN_BACKWARD_FRAC = 0.1  # of a step
# Removed fraction of the backward pass, as a multiple of the share of unused gradients. A frozen model in front of the
# trained layers needs no backward pass; one behind them does, but computes no gradients of its weights.
_REMOVED = (0.45, 1.0)


def unused_gradients(evidence: Evidence) -> Finding | None:
    """The backward pass computes gradients that no optimizer uses: of a backbone or a teacher that is not trained.

    Proof: the autograd nodes that accumulate gradients. Each backward pass runs one per parameter that requires a
    gradient; here, more of them run than the optimizers have parameters.

    Confused with: parameters that an optimizer updates only now and then; gradients of inputs, which are few; a GAN's
    generator step, which fills gradients of the discriminator, which the other optimizer holds.

    What to do: set requires_grad_(False) for parameters that are not trained, and run a teacher under torch.no_grad().
    Memory for their gradients and activations goes away, too.
    """
    gradients = evidence.cached(unused_gradients_of)
    if gradients is None:
        return None
    unused = gradients.computed - gradients.updated
    backward_ns = evidence.unprofiled_ns(gradients.backward_ns)
    share = backward_ns / evidence.step_ns
    if gradients.unused_frac < _MIN_UNUSED_FRAC or unused < _MIN_UNUSED or share < _MIN_BACKWARD_FRAC:
        return None
    saved_fracs = (_REMOVED[0] * gradients.unused_frac, _REMOVED[1] * gradients.unused_frac)
    return Finding(
        claim=f"The backward pass computes gradients for {count(gradients.computed, 'parameter tensor')}, but the "
        f"optimizer updates only {gradients.updated:,} of them: {percent(gradients.unused_frac)} are not used.",
        evidence=(f"Backward passes take {duration_in_step(evidence, backward_ns)}.",),
        numbers=known_numbers(
            computed=gradients.computed,
            updated=gradients.updated,
            unused_frac=gradients.unused_frac,
            backward_ns=backward_ns,
        ),
        fix=freezing_code(evidence, unused),
        advice="Run a teacher or another model that is not trained under torch.no_grad(). This also frees the memory "
        "of its activations and gradients.",
        gain=evidence.gain_of_removing(
            backward_ns,
            f"removing {percent(saved_fracs[0]).removesuffix(' %')} to {percent(saved_fracs[1])} of the backward "
            "passes, in proportion to the unused gradients",
            "no backward pass",
            saved_fracs,
        ),
        confidence=CERTAIN if evidence.run.source.how == "measured" else LIKELY,
        spans=gradients.spans,
    )


def freezing_code(evidence: Evidence, unused: int) -> str:
    """Return code that freezes what the only optimizer does not update; "" if it is unknown which module that is.

    `unused`: number of parameter tensors whose gradients are not used.
    """
    run = evidence.run
    if len(run.optimizers) != 1:
        return ""
    model, optimizer = evidence.names.model, evidence.names.optimizer
    others = [each for each in run.frozen_models if not _is_part(each.name, model)]
    if others and sum(each.tensors for each in others) == unused:  # such as a teacher
        return "\n".join(f"{each.name}.requires_grad_(False)" for each in others)
    if run.models and run.models[0].untrained == 0:  # another module, which was not found: a teacher in a list
        return ""
    return (
        f'trained = {{id(p) for group in {optimizer}.param_groups for p in group["params"]}}\n'
        f"for parameter in {model}.parameters():\n"
        "    parameter.requires_grad_(id(parameter) in trained)"
    )


def _is_part(name: str, model: str) -> bool:
    return name == model or name.startswith((f"{model}.", f"{model}["))
