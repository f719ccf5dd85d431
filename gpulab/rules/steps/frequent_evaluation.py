"""A rule about evaluations that take much of the run, which no step of the training shows."""

from __future__ import annotations

from gpulab.analysis.steps.phases import RunPhase, evaluated_loader, training_and_evaluations
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.wording import count, duration, percent

_MIN_FRAC = 0.3  # of training and evaluation together: many programs evaluate for a tenth of the time, or a fifth
_MIN_PASSES = 3  # with fewer, there is nothing to leave out
_REMOVED_FRACS = (1 / 2, 2 / 3)  # of the evaluation time: of every two evaluations one is left, or of every three


def frequent_evaluation(evidence: Evidence) -> Finding | None:
    """Evaluations take much of the run, because they are frequent or long.

    Proof: the loop iterates over a DataLoader, and no optimizer steps meanwhile. Such iterations together take at least
    30 % of the time of training and evaluation.

    Confused with: evaluations that wait for data (`slow_evaluation`); other code that runs every N steps
    (`periodic_stalls`).

    What to do: evaluate less often, or on fewer samples. Evaluate with torch.inference_mode() and larger batches: they
    need no memory for gradients.
    """
    phases = training_and_evaluations(evidence.run)
    if phases is None:
        return None
    training, evaluations = phases
    longest = evaluations[0]
    total_ns = training.total_ns + sum(phase.total_ns for phase in evaluations)
    share = longest.total_ns / total_ns
    if longest.passes < _MIN_PASSES or share < _MIN_FRAC:
        return None
    loader = evaluated_loader(evidence.run, longest)
    name = f" with {loader.name}" if loader is not None and loader.name else ""
    return Finding(
        claim=f"Evaluation{name} takes {percent(share)} of the time in training and evaluation: "
        f"{count(longest.passes, 'pass')} for {count(training.updates, 'training step')}.",
        evidence=(
            f"A pass of {count(round(longest.batches / longest.passes), 'batch')} takes "
            f"{duration(longest.total_ns / longest.passes)}; all passes take {duration(longest.total_ns)}, the "
            f"training steps {duration(training.total_ns)}. Together, that is "
            f"{duration(total_ns / training.updates)} per training step.",
        ),
        numbers=known_numbers(frac=share, evaluation_ns=longest.total_ns, passes=longest.passes),
        advice="Evaluate less often, or on fewer samples. Use torch.inference_mode() and a larger batch size for the "
        "evaluation: it needs no memory for gradients.",
        gain=_gain(evidence, training, longest, total_ns),
        confidence=LIKELY,
        from_steps=False,
        spans=longest.spans,
    )


def _gain(evidence: Evidence, training: RunPhase, evaluation: RunPhase, total_ns: int) -> Gain:
    """Return the gain for the mean step, which includes its share of the evaluations.

    At best, the time around an evaluation, in which frameworks switch to it and back, goes away with it: all that a
    step takes longer than a typical one.
    """
    step_ns = round(total_ns / training.updates)
    saved_ns = round(evaluation.total_ns / training.updates)
    typical_ns = evidence.steps.unprofiled_ns
    floor_ns = step_ns - saved_ns if typical_ns is None else min(step_ns - saved_ns, round(typical_ns))
    low, high = _REMOVED_FRACS
    return Gain(
        step_ns=step_ns,
        best_ns=round(step_ns - high * (step_ns - floor_ns)),
        worst_ns=round(step_ns - low * saved_ns),
        floor_ns=floor_ns,
        basis="evaluating every second time to every third time, averaged over all steps",
        floor_assumes="no evaluation",
        cold_floor_ns=step_ns - saved_ns,
        is_mean=True,
    )
