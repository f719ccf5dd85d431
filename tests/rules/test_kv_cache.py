"""What a cache saves: the range from the time per position, and what a window that slides changes."""

from __future__ import annotations

import pytest

from gpulab.rules import diagnose
from tests.cases.steps.no_kv_cache.case import generated

RULE = "no_kv_cache"


def finding(run):
    return next(each for each in diagnose(run).findings if each.rule == RULE)


def saved(run):
    """The least and the most that is saved, as a fraction of the mean step."""
    gain = finding(run).gain
    return 1 - gain.worst_ns / gain.step_ns, 1 - gain.best_ns / gain.step_ns


def test_the_bound_is_one_position_per_call():
    """59 more positions at 0.1 ms each are 59 % of a call; such calls take 90 % of 40 % of the run."""
    least, most = saved(generated(position_us=(100.0, 100.0)))
    assert least == pytest.approx(0.6 * 0.59 * 0.9 * 0.4, rel=0.02)
    assert most >= 0.59 * 0.9 * 0.4


@pytest.mark.parametrize("share", [20, 40, 80])
def test_the_saving_grows_with_the_share_of_the_run(share):
    least, _ = saved(generated(samples=share, position_us=(100.0, 100.0)))
    assert least == pytest.approx(0.6 * 0.59 * 0.9 * share / 100, rel=0.02)


def test_an_uncertain_time_per_position_widens_the_range():
    exact, uncertain = saved(generated(position_us=(90.0, 110.0))), saved(generated(position_us=(10.0, 160.0)))
    assert uncertain[0] < exact[0] < exact[1] < uncertain[1]


def test_calls_of_a_window_that_slides_are_saved_in_part_at_worst():
    growing, sliding = saved(generated(calls=80)), saved(generated(calls=20, sliding=60))
    assert 0.4 * growing[0] < sliding[0] < 0.8 * growing[0]
    assert sliding[1] == pytest.approx(growing[1], rel=0.01)


@pytest.mark.parametrize(("changes", "confidence"), [
    ({}, "likely"),
    ({"has_equal_outputs": None}, "suspect"),
    ({"samples": 7, "position_us": (160.0, 160.0)}, "suspect"),
])  # fmt: skip
def test_confidence_needs_equal_outputs_and_samples(changes, confidence):
    assert finding(generated(**changes)).confidence == confidence


def test_damaged_numbers_do_not_end_the_diagnosis():
    run = generated(position_us=(float("nan"), float("inf")))
    gains = [each.gain for each in diagnose(run).findings if each.gain is not None]
    assert all(0 < gain.floor_ns <= gain.best_ns <= gain.worst_ns for gain in gains)
