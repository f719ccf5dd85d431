"""What-ifs of a job: the predicted step of all ranks together, and how long each rank waits for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.questions import predict_ranks
from gpulab.replay.job.job_catalogue import COMMUNICATION_OF_JOBS
from gpulab.replay.job.job_prediction import JobChange, JobModel, JobPrediction, job_model, predict_job
from gpulab.replay.job.joint_sweep import JobSchedule
from gpulab.replay.rewrite import GRADES, grade_text
from gpulab.run import Run
from gpulab.views.report.headline import PREDICTED, UPPER_BOUND
from gpulab.views.report.provenance import origin
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.views.whatif.range_of_step import expectation_of, per_sample, predicted_text
from gpulab.wording import count, percent, ratio, scale, sentence

_MIN_SPEEDUP = 1.01  # smaller speed-ups are listed as no gain
_MAX_RANKS = 32  # in a table


@dataclass(frozen=True, eq=False, repr=False)
class JobWhatIf(View):
    """A prediction for a job as a view; `prediction` holds the numbers."""

    prediction: JobPrediction


def whatif_job(ranks: Sequence[Run], rewrites: str = "") -> View:
    """Predict the step time of a job with these changes together; without any, list all changes of communication.

    Raises RunError if a change is unknown or does not apply, or if the replay does not reproduce the recording.
    """
    if not rewrites.strip():
        return _list_all(job_model(ranks), ranks)
    prediction = predict_ranks(ranks, rewrites)
    blocks: tuple[Block, ...] = (
        _answer(prediction),
        Line(sentence(f"{count(len(ranks), 'rank')}; {origin(ranks[0])}"), soft=True),
        Section("Waiting for other ranks", (_waits(prediction),)),
        Section("How this was predicted", tuple(_method(prediction)), folded=True),
    )
    title = f"gpulab: {count(len(ranks), 'rank')} with {_names(prediction)}"
    return JobWhatIf(Sheet(title, blocks), prediction)


def _answer(prediction: JobPrediction) -> Answer:
    unit = scale(prediction.step_ns)
    work = "" if prediction.work_factor == 1 else f" for {ratio(prediction.work_factor)} the samples"
    return Answer(
        claim=f"With {_names(prediction)}, a step of the job takes {unit(prediction.likely_ns)}{work} instead of "
        f"{unit(prediction.step_ns)}: {ratio(prediction.speedup)} as fast{per_sample(prediction)}.",
        leading=True,
        facts=(
            (PREDICTED, predicted_text(prediction)),
            (UPPER_BOUND, f"{ratio(prediction.bound)} with {prediction.bound_label}"),
            ("Grade of the prediction", grade_text(prediction.grade)),
        ),
        expectation=expectation_of(prediction),
        notes=tuple((f"Cost of {change}", change.rewrite.cost) for change in prediction.changes if change.rewrite.cost),
    )


def _names(prediction: JobPrediction) -> str:
    return ", ".join(map(str, prediction.changes))


def _waits(prediction: JobPrediction) -> TableBlock:
    """Return how long each rank waits for others per step, now and with the changes."""
    now, then = _wait_per_step_ns(prediction.model.schedule), _wait_per_step_ns(prediction.schedule)
    unit = scale(max(1.0, float(max(now.max(), then.max()))))
    ranks = [graph.run.rank for graph in prediction.model.job.graphs]
    rows = tuple(
        Row((str(index if rank is None else rank), unit.number(before), unit.number(after)))
        for index, (rank, before, after) in enumerate(zip(ranks, now.tolist(), then.tolist(), strict=True))
        if index < _MAX_RANKS
    )
    left_over = len(ranks) - len(rows)
    caption = "Time per step in which a rank has arrived at a collective and waits for the last one, by the replay."
    if left_over:
        caption += f" {count(left_over, 'more rank')} not listed."
    return TableBlock(header=("rank", f"now, {unit.unit}", f"with the change, {unit.unit}"), rows=rows, caption=caption)


def _wait_per_step_ns(schedule: JobSchedule) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    steps = max(1, len(np.unique(schedule.job.joint.step)))
    waits: np.ndarray[tuple[int], np.dtype[np.float64]] = np.nansum(schedule.wait_ns, axis=0) / (
        steps * schedule.job.synced_every
    )
    return waits


def _method(prediction: JobPrediction) -> list[Block]:
    model = prediction.model
    joint = model.job.joint
    steps = len(np.unique(joint.step))
    rows = (
        ("Ranks", f"{len(model.job.graphs)}, replayed together and joined at {count(len(joint), 'collective')}"),
        ("Steps", f"{count(steps, 'step')} that all ranks recorded"),
        (
            "Replay error",
            f"{percent(abs(model.replay_error), 2)} (a replay without changes, compared with the recording)",
        ),
    )
    pages = [
        Line(f"How {change} is modelled: %gpuwhy {change.rewrite.name}", soft=True) for change in prediction.changes
    ]
    return [Facts(rows), *pages]


def _list_all(model: JobModel, ranks: Sequence[Run]) -> View:
    """Predict every change of the communication at its default value, each alone."""
    predictions, unpredictable = [], []
    for rewrite in COMMUNICATION_OF_JOBS:
        if rewrite.default is None:
            continue
        change = JobChange(rewrite, rewrite.default)
        reason = rewrite.refusal_reason(model.job, change.value)
        if reason is None:
            predictions.append(predict_job(model, (change,)))
        else:
            unpredictable.append((rewrite.name, sentence(reason)))
    predictions.sort(key=lambda prediction: -prediction.speedup)
    useful = [prediction for prediction in predictions if prediction.speedup >= _MIN_SPEEDUP]
    useless = tuple(
        (_names(prediction), sentence(prediction.changes[0].rewrite.about))
        for prediction in predictions
        if prediction.speedup < _MIN_SPEEDUP
    )
    blocks: list[Block] = [
        Line(
            "Changes of the communication, each alone, largest speed-up first. A change of the training loop, such as "
            "workers=4, is made on all ranks."
        ),
        Line(sentence(f"{count(len(ranks), 'rank')}; {origin(ranks[0])}"), soft=True),
        _table(useful) if useful else Line("None of these changes would make a step shorter."),
    ]
    if useless:
        blocks.append(Section("No gain in this job", (Facts(useless),), folded=True))
    if unpredictable:
        blocks.append(Section("Cannot be predicted from these ranks", (Facts(tuple(unpredictable)),), folded=True))
    return View(Sheet(f"gpulab: what would speed up a job of {count(len(ranks), 'rank')}", tuple(blocks)))


def _table(predictions: Sequence[JobPrediction]) -> TableBlock:
    unit = scale(max(prediction.step_ns for prediction in predictions))
    rows = tuple(
        Row(
            (
                _names(prediction),
                unit.number(prediction.likely_ns),
                unit.range(prediction.best_ns, prediction.worst_ns),
                ratio(prediction.speedup),
                ratio(prediction.bound),
                prediction.grade,
            )
        )
        for prediction in predictions
    )
    used = {prediction.grade for prediction in predictions}
    grades = ", ".join(f"{grade} ({grounds})" for grade, (grounds, _) in GRADES.items() if grade in used)
    step = scale(predictions[0].step_ns)(predictions[0].step_ns)
    return TableBlock(
        header=("change", f"step, {unit.unit}", "range", "speed-up", "at most", "grade"),
        rows=rows,
        caption=f"A step of the job takes {step} now; speed-ups are for the same work, per sample. Grades, from A "
        f"(best) to D (worst): {grades}.",
    )
