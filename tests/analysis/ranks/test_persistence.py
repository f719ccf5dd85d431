"""Which rank is a straggler, and which is last by chance."""

import numpy as np
import pytest

from gpulab.analysis.ranks.persistence import is_persistent
from tests.support.tiers import tiered_product

JOBS = 2_000


def has_persistent_rank(arrivals):
    """From arrivals (steps, ranks): whether the rank that is last most often is so persistently."""
    latest = np.bincount(arrivals.argmax(axis=1), minlength=arrivals.shape[1]).argmax()
    return is_persistent((arrivals.max() - arrivals).T, latest)


@pytest.mark.parametrize(
    ("draw", "steps", "ranks"),
    tiered_product(["normal", "exponential", "lognormal"], [3, 4, 8, 14, 40], [2, 4, 16]),
)
def test_equal_ranks_have_a_persistent_one_in_few_of_many_jobs(draw, steps, ranks):
    random = np.random.default_rng(steps * ranks)
    jobs = [getattr(random, draw)(size=(steps, ranks)) for _ in range(JOBS)]
    share = np.mean([has_persistent_rank(job) for job in jobs])
    assert share <= 0.025


@pytest.mark.parametrize("steps", [4, 8, 30])
@pytest.mark.parametrize("ranks", [2, 8])
def test_a_rank_that_is_always_later_by_ten_times_the_scatter_is_persistent(steps, ranks):
    random = np.random.default_rng(steps)
    for _ in range(100):
        arrivals = random.normal(size=(steps, ranks))
        arrivals[:, 1] += 15
        assert has_persistent_rank(arrivals)


def test_a_rank_that_is_last_in_every_one_of_many_steps_is_persistent_however_late():
    late = np.random.default_rng(0).exponential(size=12)
    assert has_persistent_rank(np.stack([np.zeros(12), late], axis=1))


def test_nine_of_fourteen_steps_of_two_ranks_may_be_chance():
    arrivals = np.array([[0.0, 1.0]] * 9 + [[0.0, -1.0]] * 5)
    assert not has_persistent_rank(arrivals)
    assert has_persistent_rank(np.tile(arrivals, (12, 1)))
