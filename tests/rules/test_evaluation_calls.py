"""What calls for few rows cost evaluations: the predicted range, and the findings that it replaces."""

from __future__ import annotations

import pytest

from gpulab.rules import diagnose
from tests.cases.steps.small_evaluation_batches.case import called

RULE, FREQUENT = "small_evaluation_batches", "frequent_evaluation"


def finding(run):
    return next(each for each in diagnose(run).findings if each.rule == RULE)


def test_a_shorter_row_takes_less_time_at_best_and_as_long_at_worst():
    whole, token = finding(called(length=20.0)).gain, finding(called(length=1.0)).gain
    assert token.worst_ns == whole.worst_ns
    assert token.best_ns < whole.best_ns


def test_work_around_the_calls_goes_away_at_best():
    """A tenth or half of the evaluations is outside the calls; their rows take as long as in training, less 7/8."""
    little, much = (finding(called(evaluation_frac=frac)).gain for frac in (0.9, 0.5))
    assert much.worst_ns > little.worst_ns
    assert much.best_ns == pytest.approx(little.best_ns, rel=0.1)


def test_evaluations_at_no_cost_are_the_bound():
    gains = [finding(called(call_ms=call_ms)).gain for call_ms in (1.0, 2.0, 50.0)]
    assert len({gain.floor_ns for gain in gains}) == 1
    assert all(gain.floor_ns <= gain.best_ns <= gain.worst_ns for gain in gains)


@pytest.mark.parametrize(("evaluation_frac", "replaces"), [(0.9, True), (0.4, False)])
def test_fewer_evaluations_are_proposed_as_well_unless_larger_batches_save_most_of_them(evaluation_frac, replaces):
    run = called(evaluation_frac=evaluation_frac)
    rules = {each.rule for each in diagnose(run).findings}
    assert RULE in rules
    assert (FREQUENT not in rules) == replaces


def test_rows_are_counted_along_the_dimension_of_the_batch():
    first, second = (finding(called(has_time_first=value)).numbers for value in (False, True))
    assert first["rows"] == second["rows"] == 1
    assert first["training_rows"] == second["training_rows"] == 32
