"""Whether one rank is last persistently, or only by chance: equal ranks are last in turn, as their steps vary."""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import NDArray

_MAX_CHANCE = 0.01
_MIN_DEVIATIONS, _MORE_OF_FEW_STEPS = 4.0, 8.0  # standard errors of the mean: 4 + 8 / n of n steps, 1 % by Student's t


def is_persistent(dur_ns: NDArray[np.generic], latest: int) -> bool:
    """Return whether equal ranks would hardly have one that is this late in these steps: in at most 1 % of cases.

    `dur_ns`: ranks x steps, the time in collectives, which is shortest on the rank that arrives last; `latest`: the
    rank that is last most often. Either it is last in more steps than a draw explains, or it arrives later than the
    latest other rank by far more than the scatter.
    """
    times = np.asarray(dur_ns, np.float64)
    ranks, count = times.shape
    if ranks < 2 or count < 2:
        return False
    late = np.delete(times, latest, axis=0).min(axis=0) - times[latest]
    if ranks * _draws_at_least(int((late > 0).sum()), count, 1 / ranks) <= _MAX_CHANCE:
        return True
    error_ns = float(late.std(ddof=1)) / np.sqrt(count)
    return bool(late.mean() > (_MIN_DEVIATIONS + _MORE_OF_FEW_STEPS / count) * error_ns)


def _draws_at_least(successes: int, draws: int, probability: float) -> float:
    """Return the probability of at least so many successes (binomial distribution)."""
    return sum(
        comb(draws, number) * probability**number * (1 - probability) ** (draws - number)
        for number in range(successes, draws + 1)
    )
