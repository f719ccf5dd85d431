"""Compare two sides, or three and more."""

from __future__ import annotations

from typing import overload

from gpulab.comparison.compared_prediction import named_prediction, recorded_prediction
from gpulab.comparison.comparison import Comparison, compare_sides
from gpulab.comparison.run_sequence import Story, compare_in_order
from gpulab.comparison.sides import Runs, build_side, with_unique_names
from gpulab.errors import RunError
from gpulab.replay.history import NO_HISTORY, History
from gpulab.rules import Gain


@overload
def compare(
    before: Runs,
    after: Runs,
    rule: str | None = None,
    *,
    predicted: Gain | None = None,
    history: History = NO_HISTORY,
) -> Comparison: ...
@overload
def compare(before: Runs, after: Runs, rule: Runs, /, *more: Runs) -> Story: ...
def compare(
    before: Runs,
    after: Runs,
    rule: str | Runs | None = None,
    *more: Runs,
    predicted: Gain | None = None,
    history: History = NO_HISTORY,
) -> Comparison | Story:
    """Compare two sides; with three and more, each one with its predecessor and with the first.

    A side is a run, or a list of runs of the same program. `rule`: the rule whose fix was applied between the two
    sides. `predicted`: another prediction to check against the measurement. Without both, the settings that the runs
    recorded show the change; if none differs, the prediction is that of the first finding. `history`: predictions that
    were measured before. Raises RunError if a side has no steps to compare.
    """
    if rule is None or isinstance(rule, str):
        if more:
            raise RunError(
                f"A rule cannot be given when comparing {2 + len(more)} runs.",
                why="a rule names the one fix applied between two runs",
                fix="compare two runs, or omit the rule",
            )
        before_side, after_side = with_unique_names([build_side(before), build_side(after)])
        if rule is None and predicted is None:
            return compare_sides(before_side, after_side, recorded_prediction(before_side, after_side, history))
        return compare_sides(before_side, after_side, named_prediction(before_side, rule, predicted))
    if predicted is not None:
        raise RunError(
            "A prediction cannot be checked against several changes.",
            why="it predicts one change, but three or more runs were given",
            fix="compare two of these runs",
        )
    return compare_in_order(with_unique_names([build_side(runs) for runs in (before, after, rule, *more)]))
