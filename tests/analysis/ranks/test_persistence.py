"""Which rank is a straggler, and which is last by chance."""

import numpy as np
import pytest

from gpulab.analysis.ranks.persistence import is_persistent

JOBS = 2_000


def lateness_of_the_latest(arrivals):
    """From arrivals (steps, ranks): how much later than all others the rank arrives that is last most often."""
    latest = np.bincount(arrivals.argmax(axis=1), minlength=arrivals.shape[1]).argmax()
    return arrivals[:, latest] - np.delete(arrivals, latest, axis=1).max(axis=1)


@pytest.mark.parametrize("draw", ["normal", "exponential", "lognormal"])
@pytest.mark.parametrize("steps", [3, 4, 8, 14, 40])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_equal_ranks_have_a_persistent_one_in_few_of_many_jobs(draw, steps, ranks):
    random = np.random.default_rng(steps * ranks)
    jobs = [getattr(random, draw)(size=(steps, ranks)) for _ in range(JOBS)]
    share = np.mean([is_persistent(lateness_of_the_latest(job), ranks) for job in jobs])
    assert share <= 0.025


@pytest.mark.parametrize("steps", [4, 8, 30])
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_is_always_later_by_ten_times_the_scatter_is_persistent(steps, ranks):
    random = np.random.default_rng(steps)
    for _ in range(100):
        arrivals = random.normal(size=(steps, ranks))
        arrivals[:, 1] += 15
        assert is_persistent(lateness_of_the_latest(arrivals), ranks)


def test_a_rank_that_is_last_in_every_one_of_many_steps_is_persistent_however_late():
    assert is_persistent(np.random.default_rng(0).exponential(size=12), 2)


def test_nine_of_fourteen_steps_of_two_ranks_may_be_chance():
    lateness = np.array([1.0] * 9 + [-1.0] * 5)
    assert not is_persistent(lateness, 2)
    assert is_persistent(np.tile(lateness, 12), 2)
