"""Rules about what evaluations call: few rows at a time, or a module for the same input again."""

from __future__ import annotations

from typing import NamedTuple

from gpulab.analysis.steps.phases import training_and_evaluations, training_steps
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import sentences
from gpulab.rules.host.garbage_collection import mean_step_gain
from gpulab.run import EvaluatedModule, RepeatedInputs
from gpulab.wording import count, duration, number, percent

_FEWER_ROWS = 4  # times as many rows per call in training
_MIN_SAVED_FRAC = 0.05  # of training and evaluations together
_MIN_REALISED = 0.5  # of what calls as efficient as those of the training would save
_REALISED_OF_REPEATED = (0.6, 1.0)
_ASYNCHRONOUS = "the time of a call on a GPU was measured without waiting for the GPU"
_MORE_ROWS = (
    "Evaluate more samples per call: use a larger batch_size in the DataLoader of the evaluation, or stack the samples "
    "along the first dimension. When generating text, decode all sequences of a batch at once, until each has ended. "
    "In reinforcement learning, run several episodes at once. If a metric is averaged over batches, weight a smaller "
    "last batch by its size."
)


class _Evaluations(NamedTuple):
    """The evaluations of a run, and what they cost per training step."""

    total_ns: int
    per_step_ns: float
    step_ns: float  # training and evaluations
    share: float  # of the time of both


def small_evaluation_batches(evidence: Evidence) -> Finding | None:
    """Evaluations call the model for few rows at a time: a batch size of 1, or one sentence after another.

    Proof: in parts of evaluations, and in single training steps, the calls of each module were noted: how many entries
    the first dimension of its first tensor has, and how long the call takes. A call of an evaluation has at most a
    fourth of the rows, and a row takes longer than in a forward pass of the training. The evaluations take much of the
    run.

    Confused with: evaluations that wait for data (`slow_evaluation`); frequent ones (`frequent_evaluation`); modules
    whose first dimension is time (batch_first=False), which are left out.

    What to do: evaluate several samples per call: a larger batch_size, which needs no memory for gradients; decode
    all sentences of a batch at once; in reinforcement learning, run several episodes at once. A loss that is averaged
    over batches needs weights if the last batch is smaller.
    """
    evaluations = _evaluations(evidence)
    small = [module for module in evidence.run.evaluated_modules if _saved_frac(module) > 0]
    if evaluations is None or not small:
        return None
    module = max(small, key=_saved_frac)
    called_frac = min(1.0, sum(each.evaluation_frac for each in small))
    saved_frac = min(called_frac, sum(_saved_frac(each) for each in small))
    if saved_frac * evaluations.share < _MIN_SAVED_FRAC:
        return None
    best = saved_frac / called_frac
    return Finding(
        claim=f"Evaluations take {percent(evaluations.share)} of the time in training and evaluation, and call "
        f"{_subject(module)} for {_rows(module.rows)} at a time; training steps call it for "
        f"{_rows(module.training_rows)}.",
        evidence=_rows_evidence(module, called_frac, evaluations),
        numbers=known_numbers(
            frac=evaluations.share,
            rows=module.rows,
            training_rows=module.training_rows,
            call_ns=round(module.call_ns),
            training_call_ns=round(module.training_call_ns),
            evaluation_ns=evaluations.total_ns,
        ),
        advice=_MORE_ROWS,
        gain=mean_step_gain(
            round(evaluations.step_ns),
            round(called_frac * evaluations.per_step_ns),
            "calls in which a row takes as long as in the training, or half of what that saves",
            "evaluations without these calls",
            (_MIN_REALISED * best, best),
        ),
        confidence=SUSPECT if evidence.on_gpu else evidence.confidence(LIKELY)[0],
        confidence_reason=_ASYNCHRONOUS if evidence.on_gpu else evidence.confidence(LIKELY)[1],
        from_steps=False,
    )


def _rows_evidence(module: EvaluatedModule, called_frac: float, evaluations: _Evaluations) -> tuple[str, ...]:
    row_ns, training_row_ns = module.call_ns / module.rows, module.training_call_ns / module.training_rows
    return (
        f"A call with {_rows(module.rows)} takes {duration(module.call_ns)}; a forward pass of the training with "
        f"{_rows(module.training_rows)} takes {duration(module.training_call_ns)}. Per row, that is "
        f"{duration(row_ns)} and {duration(training_row_ns)}.",
        f"{percent(called_frac)} of the time in evaluations goes to such calls. All evaluations take "
        f"{duration(evaluations.total_ns)}, {duration(evaluations.per_step_ns)} per training step.",
    )


def repeated_in_evaluations(evidence: Evidence) -> Finding | None:
    """Evaluations compute the same outputs of a module again: its input occurred before, and its weights are the same.

    Proof: in parts of evaluations, each call of a module was noted. It got the same tensors as in an earlier call, or
    on a CPU tensors with the same bytes, had the same weights, and samples of its outputs were equal, too. The
    evaluations take much of the run.

    Confused with: work that training steps repeat (`repeated_inputs`); calls for few rows (`small_evaluation_batches`).

    What to do: call the module once per batch, outside the loop over the time steps, and pass its output on. A model
    that is called as model(source, target) for each new token computes its encoder every time: split its forward() into
    encode() and decode().
    """
    evaluations = _evaluations(evidence)
    repeated = [work for work in evidence.run.repeated_in_evaluations if work.step_frac and 0 < work.step_frac < 1]
    if evaluations is None or not repeated:
        return None
    repeated_frac = min(1.0, sum(work.step_frac or 0.0 for work in repeated))
    if repeated_frac * evaluations.share < _MIN_SAVED_FRAC:
        return None
    work = repeated[0]
    subject = _subject(work)
    others = f" and {count(len(repeated) - 1, 'other module')}" if len(repeated) > 1 else ""
    return Finding(
        claim=f"Evaluations take {percent(evaluations.share)} of the time in training and evaluation, and "
        f"{percent(repeated_frac)} of that computes outputs of {subject}{others} that were computed before.",
        evidence=(
            f"{_again(work)}; the weights were the same, and samples of the outputs were equal.",
            f"All evaluations take {duration(evaluations.total_ns)}, {duration(evaluations.per_step_ns)} per training "
            "step.",
        ),
        numbers=known_numbers(
            frac=evaluations.share, repeated_frac=repeated_frac, evaluation_ns=evaluations.total_ns, calls=work.calls
        ),
        advice=sentences(
            f"Call {subject} once per batch, outside the loop over the time steps, and pass its output on.",
            "If the model is called for each new token, split its forward() into encode(), which runs once per batch, "
            "and decode(), which runs once per token.",
        ),
        gain=mean_step_gain(
            round(evaluations.step_ns),
            round(repeated_frac * evaluations.per_step_ns),
            "removing 60 to 100 % of the repeated work",
            "none of this work",
            _REALISED_OF_REPEATED,
        ),
        confidence=LIKELY,
        from_steps=False,
    )


def _evaluations(evidence: Evidence) -> _Evaluations | None:
    phases = training_and_evaluations(evidence.run)
    if phases is None:
        return None
    training, evaluations = phases
    total_ns = sum(phase.total_ns for phase in evaluations)
    steps, both_ns = training_steps(evidence.run, training), training.total_ns + total_ns
    return _Evaluations(total_ns, total_ns / steps, both_ns / steps, total_ns / max(1, both_ns))


def _saved_frac(module: EvaluatedModule) -> float:
    """Return the part of the evaluations that goes away if a row takes as long as in training; 0 for larger calls."""
    if not 0 < module.rows * _FEWER_ROWS <= module.training_rows or module.call_ns <= 0:
        return 0.0
    training_ns = module.training_call_ns / module.training_rows * module.rows
    return module.evaluation_frac * max(0.0, 1 - training_ns / module.call_ns)


def _subject(module: EvaluatedModule | RepeatedInputs) -> str:
    return f"{module.name} ({module.kind})" if module.name else module.kind


def _rows(rows: float) -> str:
    return "1 row" if rows == 1 else f"{number(rows)} rows"


def _again(work: RepeatedInputs) -> str:
    location = f" at {work.location}" if work.location else ""
    calls = count(work.calls or 0, "call")
    if work.distinct_frac is None:
        return f"In the watched parts, {calls}{location} had the same input as an earlier call"
    return f"In the watched parts, {percent(1 - work.distinct_frac)} of the rows in {calls}{location} are copies"
