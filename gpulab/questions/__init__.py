"""Diagnose, predict and compare runs, using the history of predictions that were measured on this machine.

The packages below answer from runs alone; this package adds the history in gpulab.user_data.predictions, and adds
measured predictions to it. A run can be given by its name or by the path of its file (`run_names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from gpulab import comparison, rules
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.capture.run_registry import runs
from gpulab.comparison import Comparison, Story
from gpulab.comparison.sides import Runs
from gpulab.errors import RunError
from gpulab.questions.run_names import RunLike, RunName, find_ranks, find_run, is_run_name, replace_names
from gpulab.replay import parsing, prediction
from gpulab.replay.history import History
from gpulab.replay.job.job_catalogue import JOB_REWRITES_BY_NAME
from gpulab.replay.job.job_prediction import JobChange, JobPrediction, job_model, predict_job
from gpulab.replay.prediction import Prediction, ReplayModel
from gpulab.rules import Diagnosis, Gain
from gpulab.rules.engine.evidence import gain_from_prediction
from gpulab.run import Run
from gpulab.user_data import predictions
from gpulab.wording import nearest_name

RunsLike = Runs | RunName | Sequence[RunLike]  # of a comparison


def diagnose(run: RunLike | Sequence[RunLike], peers: Sequence[RunLike] = ()) -> Diagnosis:
    """Return the ranked findings for a run. Never raises for missing data: rules without their inputs are not judged.

    For a sequence of runs, as `gpulab.load("folder/")` returns, this diagnoses the straggler, or the first run if there
    is none, and quotes the verdicts of the other ranks. `peers`: the runs of all ranks when `what` is one of them:
    gpulab.diagnose(ranks[2], ranks). Raises RunError if `what` is not a run.
    """
    subject = replace_names(run)
    candidates = subject if isinstance(subject, Sequence) else (subject,)
    first = next((each for each in candidates if isinstance(each, Run)), None)
    return rules.diagnose(subject, find_ranks(peers), prediction_history(first))


def predict(run: RunLike, rewrites: str, *, samples: int | None = None) -> Prediction:
    """Predict the step time of a run with these rewrites applied together: "workers=6, pin_memory, amp=bf16".

    Raises RunError for an unknown rewrite, for one that does not apply to this run, and if the replay of the run is not
    reliable.
    """
    run, changes = find_run(run), parsing.parse_changes(rewrites)
    return prediction.predict(prepare_scene(run), changes, samples=samples, history=prediction_history(run))


def predict_ranks(ranks: RunName | Sequence[RunLike], rewrites: str) -> JobPrediction:
    """Predict the step time of a job with these changes together: "no_straggler", "bandwidth=2", "workers=6".

    All ranks are replayed together, joined at their collectives. Raises RunError for an unknown change, for one that
    does not apply to these ranks, and if their replay is not reliable.
    """
    values = parsing.parse_values(rewrites, JOB_REWRITES_BY_NAME)
    return predict_job(job_model(find_ranks(ranks)), tuple(JobChange(rewrite, value) for rewrite, value in values))


def prepare_scene(run: Run) -> ReplayModel:
    """Prepare a run for what-ifs. Raises RunError if no step was recorded with events."""
    detected_steps = find_steps(run)
    step_ledger = build_ledger(run, detected_steps)
    if step_ledger is None or detected_steps.step_ns is None:
        raise RunError(
            f"The run {run.name!r} cannot be used for predictions.",
            why="no step was recorded with events",
            fix="record the loop with %%gpuprofile, not with --level sensors, and let it run for at least twelve steps",
        )
    return prediction.replay_model(run, detected_steps, step_ledger)


@overload
def compare(
    before: RunsLike,
    after: RunsLike,
    rule: str | None = None,
    *,
    predicted: Gain | None = None,
    rewrites: str | None = None,
) -> Comparison: ...
@overload
def compare(before: RunsLike, after: RunsLike, rule: Runs, /, *more: RunsLike) -> Story: ...
def compare(
    before: RunsLike,
    after: RunsLike,
    rule: RunsLike | None = None,
    *more: RunsLike,
    predicted: Gain | None = None,
    rewrites: str | None = None,
) -> Comparison | Story:
    """Compare two runs: what changed, and how the prediction compares with the measurement, which is remembered.

    With three or more runs, the gain of each change along the way. Each side is a run, or a list of repeated runs.
    `rule`: the rule whose fix was applied in between. `rewrites`: the change, as `gpulab.whatif` takes it. `predicted`:
    another prediction. Without all three, the settings recorded in both runs show which change was made; if none
    differs, the prediction is that of the first finding. Raises RunError if a side has no steps to compare.
    """
    first, second = replace_names(before), replace_names(after)
    if rule is not None and not (isinstance(rule, str) and _is_rule(rule)):
        return comparison.compare(first, second, replace_names(rule), *(replace_names(side) for side in more))
    predicted = gain_from_prediction(predict(_first_run(first), rewrites)) if rewrites else predicted
    history = prediction_history(_first_run(first))
    result = comparison.compare(first, second, rule, predicted=predicted, history=history)
    change = rewrites or result.prediction.rewrites
    remember(result, history_key(change) if change else None)
    return result


def _is_rule(text: str) -> bool:
    """Whether a third argument of `compare` is the name of a rule, perhaps mistyped, and not that of a run."""
    return any(rule.name == text for rule in rules.RULES) or not (is_run_name(text) or nearest_name(text, runs))


def _first_run(side: Runs) -> Run:
    return side if isinstance(side, Run) else side[0]


def remember(result: Comparison, rewrites_key: str | None = None) -> None:
    """Add a prediction that was measured here to the history of this machine."""
    acted_on = result.acted_on
    if rewrites_key is None and acted_on is not None and acted_on.rewrites:
        rewrites_key = history_key(acted_on.rewrites)
    outcome = comparison.measured_prediction(result, rewrites_key)
    if outcome is not None and result.after.run.source.how == "measured":
        predictions.store_prediction(outcome)


def history_key(rewrites: str) -> str:
    """Return the key under which predictions of these rewrites are remembered."""
    return "+".join(sorted(chosen.rewrite.name for chosen in parsing.parse_changes(rewrites)))


def prediction_history(run: Run | None) -> History:
    """Return the history of predictions for this run's device on this machine."""
    return History(predictions.read_measured_predictions(run.source.device)) if run is not None else History()
