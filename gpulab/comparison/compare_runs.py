"""The question itself: two sides make a comparison, more of them a story."""

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
    """What changed from one run to the other; with three runs and more, what each step of the way gave.

    Each side is a run, or a list of runs in which the same was recorded several times. `rule`: whose fix was applied
    in between; the first finding's unless given. `predicted`: another prediction to hold the measurement against.
    Raises RunError where a side has no steps to compare.
    """
    if rule is None or isinstance(rule, str):
        if more:
            raise RunError(
                f"These are {2 + len(more)} runs and a rule.",
                why="the fix of one rule lies between two runs",
                fix="compare two runs by a rule, or leave the rule out",
            )
        one, other = told_apart([side(before), side(after)])
        return paired(one, other, rule, predicted)
    if predicted is not None:
        raise RunError(
            "A prediction cannot be held against a story of several changes.",
            why="it is of one step, and here are more",
            fix="compare two of these runs with it",
        )
    return story(told_apart([side(each) for each in (before, after, rule, *more)]))
