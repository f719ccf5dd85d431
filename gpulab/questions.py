"""Diagnose, predict and compare runs, using the history of predictions that were measured on this machine.

The packages below answer from runs alone; this module adds the history in gpulab.user_data.predictions, and adds
measured predictions to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from gpulab import comparison, rules
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.comparison import Comparison, Story
from gpulab.comparison.sides import Given
from gpulab.errors import RunError
from gpulab.replay import parsing, prediction
from gpulab.replay.history import History
from gpulab.replay.prediction import SAMPLES, Prediction, Scene
from gpulab.rules import Diagnosis, Gain
from gpulab.rules.engine.evidence import gain_of
from gpulab.run import Run
from gpulab.user_data import predictions


def diagnose(what: Run | Sequence[Run], peers: Sequence[Run] = ()) -> Diagnosis:
    """Return the ranked findings for a run. Never raises for missing data: rules without their inputs are not judged.

    For a sequence of runs, as `gpulab.load("folder/")` returns, this diagnoses the straggler, or the first run if there
    is none, and quotes the verdicts of the other ranks. `peers`: the runs of all ranks when `what` is one of them:
    gpulab.diagnose(ranks[2], ranks). Raises RunError if `what` is not a run.
    """
    candidates = what if isinstance(what, Sequence) else (what,)
    first = next((each for each in candidates if isinstance(each, Run)), None)
    return rules.diagnose(what, peers, learned(first))


def predict(run: Run, rewrites: str, *, samples: int = SAMPLES) -> Prediction:
    """Predict the step time of a run with these rewrites applied together: "workers=6, pin_memory, amp=bf16".

    Raises RunError for an unknown rewrite, for one that does not apply to this run, and if the replay of the run is not
    reliable.
    """
    return prediction.predict(ready(run), parsing.chosen(rewrites), samples=samples, history=learned(run))


def ready(run: Run) -> Scene:
    """Prepare a run for what-ifs. Raises RunError if no step was recorded with events."""
    detected_steps = steps(run)
    step_ledger = ledger(run, detected_steps)
    if step_ledger is None or detected_steps.step_ns is None:
        raise RunError(
            f"The run {run.name!r} cannot be used for predictions.",
            why="no step was recorded with events",
            fix="record the loop with %%gpuprofile, not with --level sensors, and let it run for at least six steps",
        )
    return prediction.scene(run, detected_steps, step_ledger)


@overload
def compare(
    before: Given,
    after: Given,
    rule: str | None = None,
    *,
    predicted: Gain | None = None,
    rewrites: str | None = None,
) -> Comparison: ...
@overload
def compare(before: Given, after: Given, rule: Given, /, *more: Given) -> Story: ...
def compare(
    before: Given,
    after: Given,
    rule: str | Given | None = None,
    *more: Given,
    predicted: Gain | None = None,
    rewrites: str | None = None,
) -> Comparison | Story:
    """Compare two runs: what changed, and how the prediction compares with the measurement, which is remembered.

    With three or more runs, the gain of each change along the way. Each side is a run, or a list of repeated runs.
    `rule`: the rule whose fix was applied in between; by default, that of the first finding. `rewrites`: the change, as
    `gpulab.whatif` takes it. `predicted`: another prediction. Raises RunError if a side has no steps to compare.
    """
    if rule is not None and not isinstance(rule, str):
        return comparison.compare(before, after, rule, *more)
    predicted = gain_of(predict(_first_run(before), rewrites)) if rewrites else predicted
    result = comparison.compare(before, after, rule, predicted=predicted)
    keep(result, kind(rewrites) if rewrites else None)
    return result


def _first_run(side: Given) -> Run:
    return side if isinstance(side, Run) else side[0]


def keep(result: Comparison, rewrites_key: str | None = None) -> None:
    """Add a prediction that was measured here to the history of this machine."""
    acted_on = result.acted_on
    if rewrites_key is None and acted_on is not None and acted_on.rewrites:
        rewrites_key = kind(acted_on.rewrites)
    outcome = comparison.outcome(result, rewrites_key)
    if outcome is not None and result.after.run.source.how == "measured":
        predictions.remember(outcome)


def kind(rewrites: str) -> str:
    """Return the key under which predictions of these rewrites are remembered."""
    return "+".join(sorted(chosen.rewrite.name for chosen in parsing.chosen(rewrites)))


def learned(run: Run | None) -> History:
    """Return the history of predictions for this run's device on this machine."""
    return History(predictions.known(run.source.device)) if run is not None else History()
