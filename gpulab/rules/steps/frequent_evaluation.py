"""A rule about evaluations that take much of the run, which no step of the training shows."""

from __future__ import annotations

from gpulab.analysis.steps.evaluations.evaluating_code import CodeEvaluations
from gpulab.analysis.steps.phases import RunPhase, evaluated_loader, training_and_evaluations, training_steps
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.wording import clean, count, duration, percent

_MIN_FRAC = 0.3  # of training and evaluation together: many programs evaluate for a tenth of the time, or a fifth
_MIN_OCCURRENCES = 3  # with fewer, there is nothing to leave out
_REMOVED_FRACS = (1 / 2, 2 / 3)  # of the evaluation time: of every two evaluations one is left, or of every three


def frequent_evaluation(evidence: Evidence) -> Finding | None:
    """Evaluations take much of the run, because they are frequent or long.

    Proof: the loop iterates over a DataLoader, and no optimizer steps meanwhile. Without a DataLoader: in samples of
    the main thread, a function evaluates by its name or the models are in eval mode, between two updates that are
    further apart than usual. Such evaluations together take at least 30 % of the time of training and evaluation. It is
    likely if forward passes without a backward pass were recorded meanwhile, or batches of a DataLoader were fetched.

    Confused with: evaluations that wait for data (`slow_evaluation`); other code that runs every N steps
    (`periodic_stalls`); rollouts and generated samples that the training uses.

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
    if longest.occurrences < _MIN_OCCURRENCES or share < _MIN_FRAC:
        return None
    steps = training_steps(evidence.run, training)
    is_proven = longest.code is None or longest.code.is_proven
    return Finding(
        claim=f"Evaluation{_name(evidence, longest)} takes {percent(share)} of the time in training and evaluation: "
        f"{count(longest.occurrences, _noun(longest))} for {count(steps, 'training step')}.",
        evidence=(
            f"{_one(longest)} takes {duration(longest.total_ns / longest.occurrences)}; all take "
            f"{duration(longest.total_ns)}, the training steps {duration(training.total_ns)}. Together, that is "
            f"{duration(total_ns / steps)} per training step.",
            *(() if longest.code is None else (_code_evidence(longest.code),)),
        ),
        numbers=known_numbers(frac=share, evaluation_ns=longest.total_ns, passes=longest.occurrences),
        advice="Evaluate less often, or on fewer samples. Use torch.inference_mode() and a larger batch size for the "
        "evaluation: it needs no memory for gradients.",
        gain=_gain(evidence, longest, total_ns, steps),
        confidence=LIKELY if is_proven else SUSPECT,
        confidence_reason="" if is_proven else "no forward pass of these evaluations was recorded",
        from_steps=False,
        spans=longest.spans,
    )


def _name(evidence: Evidence, phase: RunPhase) -> str:
    """Return the evaluation's function, DataLoader or own name, for the claim."""
    if phase.code is not None:
        return f" in {clean(phase.code.function)}()" if phase.code.function else ""
    loader = evaluated_loader(evidence.run, phase)
    if loader is not None and loader.name:
        return f" with {loader.name}"
    return f" ({clean(phase.name)})" if phase.name and not phase.passes else ""


def _noun(phase: RunPhase) -> str:
    return "pass" if phase.passes else "evaluation"


def _one(phase: RunPhase) -> str:
    """Return the subject for one evaluation, with its number of batches or forward passes."""
    if phase.passes:
        return f"A pass of {count(round(phase.batches / phase.passes), 'batch')}"
    recorded = None if phase.code is None else phase.code.recorded
    if recorded is None or not recorded.passes:
        return "An evaluation"
    return f"An evaluation of {count(recorded.passes, 'forward pass')}"


def _code_evidence(code: CodeEvaluations) -> str:
    """Return what shows that this code evaluates: samples and, if recorded, forward passes without a backward pass."""
    subject = f"{clean(code.function)}() runs" if code.function else "the trained models are in eval mode"
    samples = f"In {count(code.samples, 'sample')} of the main thread, {subject} between two updates"
    if not code.is_proven:
        return f"{samples}."
    return f"{samples}; the recorded events meanwhile have forward passes and no backward pass."


def _gain(evidence: Evidence, evaluation: RunPhase, total_ns: int, steps: int) -> Gain:
    """Return the gain for the mean step, which includes its share of the evaluations.

    At best, the time around an evaluation, in which frameworks switch to it and back, goes away with it: all that a
    step takes longer than a typical one.
    """
    step_ns = round(total_ns / steps)
    saved_ns = round(evaluation.total_ns / steps)
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
