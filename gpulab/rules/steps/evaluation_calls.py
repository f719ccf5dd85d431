"""Rules about what evaluations call: few rows at a time, or a module for the same input again."""

from __future__ import annotations

from typing import NamedTuple

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.steps.phases import training_and_evaluations, training_steps
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import sentences
from gpulab.rules.host.garbage_collection import mean_step_gain
from gpulab.run import EvaluatedModule, RepeatedInputs, Run
from gpulab.wording import count, duration, number, percent

_FEWER_ROWS = 4  # times as many rows per call in training
_MIN_SAVED_FRAC = 0.05  # of training and evaluations together
_MOST_OF_EVALUATIONS = 0.5  # then fewer evaluations are the smaller remedy
_MIN_REALISED = 0.5  # of what calls as efficient as those of the training would save
_REALISED_OF_REPEATED = (0.6, 1.0)
_ASYNCHRONOUS = "the time of a call on a GPU was measured without waiting for the GPU"
_EQUAL_OUTPUTS = ", and samples of the outputs were equal"
_MORE_ROWS = (
    "Evaluate more samples per call: use a larger batch_size in the DataLoader of the evaluation, or stack the samples "
    "along the first dimension. When generating text, decode all sequences of a batch at once, until each has ended. "
    "In reinforcement learning, run several episodes at once. If a metric is averaged over batches, weight a smaller "
    "last batch by its size. Evaluating less often saves time, too."
)


class EvaluationTime(NamedTuple):
    """The evaluations of a run, and what they cost per training step."""

    total_ns: int
    per_step_ns: float
    step_ns: float  # training and evaluations
    share: float  # of the time of both
    waiting_frac: float  # of the evaluations, for data


class _Batches(NamedTuple):
    """The rows of the calls of a module."""

    module: EvaluatedModule
    rows: float  # per call of an evaluation
    training_rows: float
    length_frac: float  # of a row, as in decoding token by token: its length per length of a row in training, at most 1

    @property
    def saved_frac(self) -> float:
        """The part of the evaluations that goes away if a row takes as long as in training; 0 for larger calls."""
        return self._saved_frac(1.0)

    @property
    def most_saved_frac(self) -> float:
        """The same if a shorter row takes less time in proportion."""
        return self._saved_frac(self.length_frac)

    def _saved_frac(self, row_frac: float) -> float:
        if self.rows * _FEWER_ROWS > self.training_rows:
            return 0.0
        training_ns = self.module.training_call_ns / self.training_rows * self.rows * row_frac
        return self.module.evaluation_frac * max(0.0, 1 - training_ns / self.module.call_ns)


class _SmallCalls(NamedTuple):
    """All calls of evaluations for few rows, as parts of the evaluations, 0-1."""

    longest: _Batches  # those that could save most
    frac: float
    saved_frac: float
    most_saved_frac: float


def small_evaluation_batches(evidence: Evidence) -> Finding | None:
    """Evaluations call the model for few rows at a time: a batch size of 1, or one sentence after another.

    Proof: in parts of evaluations, and in single training steps, the calls of each module were noted: the size of its
    first tensor, and how long the call takes. A call of an evaluation has at most a fourth of the rows, and a row takes
    longer than in a forward pass of the training. The evaluations take much of the run.

    Confused with: evaluations that wait for data (`slow_evaluation`); frequent ones (`frequent_evaluation`); time steps
    instead of rows, where layers have batch_first=False: then the batch is the dimension that has the batch size of the
    DataLoader in training.

    What to do: evaluate several samples per call: a larger batch_size, which needs no memory for gradients; decode
    all sentences of a batch at once; in reinforcement learning, run several episodes at once. A loss that is averaged
    over batches needs weights if the last batch is smaller.
    """
    evaluations, small = evaluation_time(evidence), _small_calls(evidence.run)
    if evaluations is None or small is None or small.saved_frac * evaluations.share < _MIN_SAVED_FRAC:
        return None
    module, rows, training_rows = small.longest.module, small.longest.rows, small.longest.training_rows
    return Finding(
        claim=f"Evaluations take {percent(evaluations.share)} of the time in training and evaluation, and call "
        f"{_subject(module)} for {_rows(rows)} at a time; training steps call it for {_rows(training_rows)}.",
        evidence=_rows_evidence(small, evaluations),
        numbers=known_numbers(
            frac=evaluations.share,
            rows=rows,
            training_rows=training_rows,
            call_ns=round(module.call_ns),
            training_call_ns=round(module.training_call_ns),
            evaluation_ns=evaluations.total_ns,
        ),
        advice=_MORE_ROWS,
        gain=_gain_of_rows(evaluations, small),
        explains=("frequent_evaluation",) if small.saved_frac >= _MOST_OF_EVALUATIONS else (),
        confidence=SUSPECT if evidence.on_gpu else LIKELY,
        confidence_reason=_ASYNCHRONOUS if evidence.on_gpu else "",
    )


def _gain_of_rows(evaluations: EvaluationTime, small: _SmallCalls) -> Gain | None:
    """Return the gain of larger calls; at best, also of less that a framework does around each of them.

    Loading a sample takes as long as before.
    """
    around_calls_frac = max(0.0, 1 - small.frac - evaluations.waiting_frac)
    fewer_calls_frac = 1 - small.longest.rows / small.longest.training_rows
    return mean_step_gain(
        round(evaluations.step_ns),
        round(evaluations.per_step_ns),
        "at worst, half of what calls save in which a row takes as long as in training; at best, all of that and of "
        "the work around each call",
        "no evaluation",
        (_MIN_REALISED * small.saved_frac, small.most_saved_frac + around_calls_frac * fewer_calls_frac),
    )


def _rows_evidence(small: _SmallCalls, evaluations: EvaluationTime) -> tuple[str, ...]:
    module, rows, training_rows = small.longest.module, small.longest.rows, small.longest.training_rows
    return (
        f"A call with {_rows(rows)} takes {duration(module.call_ns)}; a forward pass of the training with "
        f"{_rows(training_rows)} takes {duration(module.training_call_ns)}. Per row, that is "
        f"{duration(module.call_ns / rows)} and {duration(module.training_call_ns / training_rows)}.",
        f"{percent(small.frac)} of the time in evaluations goes to such calls. All evaluations take "
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
    evaluations = evaluation_time(evidence)
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
            f"{_again(work)}; the weights were the same{'' if evidence.on_gpu else _EQUAL_OUTPUTS}.",
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
        confidence=SUSPECT if evidence.on_gpu else LIKELY,
        confidence_reason="outputs on a GPU were not compared" if evidence.on_gpu else "",
        from_steps=False,
    )


def evaluation_time(evidence: Evidence) -> EvaluationTime | None:
    """Return what evaluations cost; None without training steps, or without evaluations."""
    phases = training_and_evaluations(evidence.run)
    if phases is None:
        return None
    training, evaluations = phases
    total_ns = sum(phase.total_ns for phase in evaluations)
    steps, both_ns = training_steps(evidence.run, training), training.total_ns + total_ns
    waiting_ns = sum(phase.waiting_ns for phase in evaluations)
    return EvaluationTime(
        total_ns=total_ns,
        per_step_ns=total_ns / steps,
        step_ns=both_ns / steps,
        share=total_ns / max(1, both_ns),
        waiting_frac=waiting_ns / max(1, total_ns),
    )


def _small_calls(run: Run) -> _SmallCalls | None:
    loader = training_loader(run)
    calls = [_batches(module, loader.batch_size if loader else None) for module in run.evaluated_modules]
    small = [each for each in calls if each is not None and each.saved_frac > 0]
    if not small:
        return None
    frac = min(1.0, sum(each.module.evaluation_frac for each in small))
    return _SmallCalls(
        longest=max(small, key=lambda each: each.saved_frac),
        frac=frac,
        saved_frac=min(frac, sum(each.saved_frac for each in small)),
        most_saved_frac=min(frac, sum(each.most_saved_frac for each in small)),
    )


def _batches(module: EvaluatedModule, batch_size: int | None) -> _Batches | None:
    """Return how many rows a module gets; None if the dimension of the batch is unknown.

    It is the one that has the batch size of the DataLoader in training steps. Otherwise it is the first one, unless a
    layer with batch_first=False makes that doubtful.
    """
    order = (1, 0) if module.has_time_first else (0, 1)
    dimensions = [each for each in order if batch_size and round(module.training_sizes[each]) == batch_size]
    if not dimensions and module.has_time_first:
        return None
    dimension = dimensions[0] if dimensions else 0
    rows, training_rows = module.sizes[dimension], module.training_sizes[dimension]
    length, training_length = module.sizes[1 - dimension], module.training_sizes[1 - dimension]
    if min(rows, training_rows, length, module.call_ns, module.training_call_ns, module.evaluation_frac) <= 0:
        return None
    return _Batches(module, rows, training_rows, min(1.0, length / max(1.0, training_length)))


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
