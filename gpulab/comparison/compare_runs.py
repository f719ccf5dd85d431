"""Compare two sides, or three and more."""

from __future__ import annotations

from typing import overload

from gpulab.comparison.comparison import Comparison, paired
from gpulab.comparison.sides import Given, side, told_apart
from gpulab.comparison.stories import Story, story
from gpulab.errors import RunError
from gpulab.rules import Gain


@overload
def compare(before: Given, after: Given, rule: str | None = None, *, predicted: Gain | None = None) -> Comparison: ...
@overload
def compare(before: Given, after: Given, rule: Given, /, *more: Given) -> Story: ...
def compare(
    before: Given,
    after: Given,
    rule: str | Given | None = None,
    *more: Given,
    predicted: Gain | None = None,
) -> Comparison | Story:
    """Compare two sides; with three and more, each one with its predecessor and with the first.

    A side is a run, or a list of runs of the same program. `rule`: the rule whose fix was applied between the two sides
    (default: that of the first finding). `predicted`: another prediction to check against the measurement.
    Raises RunError if a side has no steps to compare.
    """
    if rule is None or isinstance(rule, str):
        if more:
            raise RunError(
                f"A rule cannot be given when comparing {2 + len(more)} runs.",
                why="a rule names the one fix applied between two runs",
                fix="compare two runs, or omit the rule",
            )
        before_side, after_side = told_apart([side(before), side(after)])
        return paired(before_side, after_side, rule, predicted)
    if predicted is not None:
        raise RunError(
            "A prediction cannot be checked against several changes.",
            why="it predicts one change, but three or more runs were given",
            fix="compare two of these runs",
        )
    return story(told_apart([side(runs) for runs in (before, after, rule, *more)]))
