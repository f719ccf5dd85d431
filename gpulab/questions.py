"""What a person asks of runs, with what earlier predictions on this machine taught: why, what if, and what came of it.

The questions are answered to the left of here, from runs alone; here they are given the history of this machine,
gpulab.user_data.predictions, which a measured prediction is added to.
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
    """What is worth changing in this run, first things first; never raises for what a run lacks, it says so.

    Of many runs, as `gpulab.load("folder/")` gives them, it is the diagnosis of the rank that the others wait for, or
    of the first, with the verdicts of the others beside it. `peers`: the runs of all ranks, where one of them is asked
    about: gpulab.diagnose(ranks[2], ranks). Raises RunError for what is no run.
    """
    several = what if isinstance(what, Sequence) else (what,)
    first = next((each for each in several if isinstance(each, Run)), None)
    return rules.diagnose(what, peers, learned(first))


def predict(run: Run, rewrites: str, *, samples: int = SAMPLES) -> Prediction:
    """The step of a run with these rewrites made together: "workers=6, pin_memory, amp=bf16".

    Raises RunError for a rewrite that is none, where one cannot be told from this run, and where the replay of the
    run is not to be trusted.
    """
    return prediction.predict(ready(run), parsing.chosen(rewrites), samples=samples, history=learned(run))


def ready(run: Run) -> Scene:
    """A run made ready for what-ifs. Raises RunError where no step was recorded with events."""
    found = steps(run)
    accounts = ledger(run, found)
    if accounts is None or found.step_ns is None:
        raise RunError(
            f"Nothing can be predicted from the run {run.name!r}.",
            why="no step was recorded with events",
            fix="record the loop with %%gpuprofile, not with --level sensors, and let it run for at least six steps",
        )
    return prediction.scene(run, found, accounts)


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
    """What changed from one run to the other, and how the prediction did, which is kept for later ones.

    With three runs and more, what each step of the way gave. Each side is a run, or a list of runs in which the same
    was recorded several times. `rule`: whose fix was applied in between; the first finding's unless given. `rewrites`:
    or what was changed, as `gpulab.whatif` takes it. `predicted`: or another prediction. Raises RunError where a side
    has no steps to compare.
    """
    if rule is not None and not isinstance(rule, str):
        return comparison.compare(before, after, rule, *more)
    predicted = gain_of(predict(_one(before), rewrites)) if rewrites else predicted
    compared = comparison.compare(before, after, rule, predicted=predicted)
    keep(compared, kind(rewrites) if rewrites else None)
    return compared


def _one(given: Given) -> Run:
    return given if isinstance(given, Run) else given[0]


def keep(compared: Comparison, named: str | None = None) -> None:
    """Add a prediction that was measured here to the history of this machine."""
    acted_on = compared.acted_on
    if named is None and acted_on is not None and acted_on.rewrites:
        named = kind(acted_on.rewrites)
    outcome = comparison.outcome(compared, named)
    if outcome is not None and compared.after.run.source.how == "measured":
        predictions.remember(outcome)


def kind(rewrites: str) -> str:
    """What predictions of these rewrites are kept under."""
    return "+".join(sorted(each.rewrite.name for each in parsing.chosen(rewrites)))


def learned(run: Run | None) -> History:
    """What predictions for this run's device taught on this machine."""
    return History(predictions.known(run.source.device)) if run is not None else History()
