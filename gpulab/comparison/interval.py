"""How sure the ratio of two step times is: the sampling of steps within a run, and what differs from run to run.

Steps that follow one another are alike: a machine warms up, a neighbour comes and goes. So blocks of neighbouring
steps are resampled, not single ones, and the blocks are the longer the more alike neighbours are. And two runs of one
program differ by more than their steps tell: memory lies elsewhere, clocks are other ones. Where runs were repeated
that is seen; where they were not it is assumed, from what was measured, and a few repeats move the assumption only
as far as their number bears.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints

Floats = NDArray[np.float64]

RESAMPLES = 2000  # enough for the 2.5 % quantile to settle in the third figure
MOST_STEPS = 500  # of more, evenly spaced ones are resampled: the interval cannot get narrower by more of them
LEAST_BLOCKS = 4  # fewer tell nothing of how much blocks differ
# The same program run again: how much the logarithm of its typical step differs, as a standard deviation. Where steps
# within a run differ much so do runs: on a shared machine of two cores, whose undisturbed steps spread by 5-12 %,
# medians of runs in fresh processes differed by 6-11 %, those of runs in turn in one process by 2-4 %.
BETWEEN_OF_WITHIN = 1.0
LEAST_BETWEEN, MOST_BETWEEN = 0.01, 0.08
IN_TURN = 0.3  # of that, for neighbours in time
PRIOR_RUNS = 3.0  # the assumption counts as much as so many repeats
ENOUGH_TURNS = 6  # from so many pairs of neighbours on, their ratios alone tell how sure their mean is
ENOUGH_RUNS = 3  # so many show among themselves what other programs do to them
ENOUGH_STEPS = 20  # of so many in a run the fastest tenth are two
LEAST_FREEDOM = 6.0  # of Student's t by which it is drawn: how far the assumption itself may be off


class Centre(Enum):
    """The figure that stands for the steps of a run."""

    MEDIAN = "median"
    MEAN = "mean"  # where what strikes now and then is judged
    FASTEST = "fastest tenth"  # the 10 % quantile: what else a machine does only ever makes steps longer

    def of(self, steps: Any, axis: int | None = None) -> Any:
        """The figure of these steps, along an axis where there is one."""
        if self is Centre.MEAN:
            return np.mean(steps, axis=axis)
        return np.percentile(steps, 50 if self is Centre.MEDIAN else 10, axis=axis)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The typical step before over that after, with its 95 % interval; above one means that `after` is faster."""

    value: float
    low: float
    high: float
    sure_low: float  # 99 % interval: a difference is called one where this excludes it
    sure_high: float
    between_frac: float  # how much runs of one program are taken to differ, as a standard deviation

    @property
    def sure(self) -> bool:
        """Chance alone shows as much in one of a hundred comparisons."""
        return not self.sure_low <= 1.0 <= self.sure_high

    @property
    def excludes_one(self) -> bool:
        """Chance alone shows as much in one of twenty comparisons."""
        return not self.low <= 1.0 <= self.high


def ratio(
    before: Sequence[Ints],
    after: Sequence[Ints],
    *,
    centre: Centre = Centre.MEDIAN,
    in_turn: bool = False,
    extra_frac: tuple[float, float] = (0.0, 0.0),
    seed: int = 0,
) -> Ratio:
    """The ratio of two sides, each the step times of one run or of several repeated ones; the same every time.

    `in_turn`: they were recorded one of each after the other, so that what drifts falls on both alike.
    `extra_frac`: how much more the runs of each side may differ, as other programs used the machine meanwhile; of
    repeated runs it is seen how much they do.
    """
    random = np.random.default_rng(seed)
    sides = [_Side.of(runs, centre, random) for runs in (before, after)]
    assumed = _assumed([*before, *after])
    between, freedom = _between(sides, assumed, in_turn)
    value = float(sides[0].centres.mean() / sides[1].centres.mean())
    if in_turn and len(before) >= ENOUGH_TURNS:
        spread, freedom = _neighbours(sides, assumed * IN_TURN)
        draws = spread / math.sqrt(len(before)) * random.standard_t(freedom, RESAMPLES)
    else:
        draws = np.zeros(RESAMPLES)
        for sign, side, extra in zip((1, -1), sides, extra_frac, strict=True):
            few = len(side.centres) < ENOUGH_RUNS
            spread = (math.hypot(between, extra) if few else between) / math.sqrt(len(side.centres))
            draws += sign * (side.draws + spread * random.standard_t(freedom, RESAMPLES))
    edges = value * np.exp(np.percentile(draws, (0.5, 2.5, 97.5, 99.5)))
    return Ratio(
        value=value,
        low=float(edges[1]),
        high=float(edges[2]),
        sure_low=float(edges[0]),
        sure_high=float(edges[3]),
        between_frac=between,
    )


def steadiest(sides: Sequence[Sequence[Ints]], in_turn: bool) -> Centre:
    """By which figure the repeated runs of each side differ least among themselves: the median, or the fastest tenth.

    Asked of what is alike, never of the difference to be judged. On a shared machine medians of runs of one program
    differed by 6-8 %, the fastest tenths of their steps by 4-5 %. Too few runs, or too few steps, have a median only.
    """
    if min(map(len, sides)) < ENOUGH_RUNS or min(len(steps) for runs in sides for steps in runs) < ENOUGH_STEPS:
        return Centre.MEDIAN
    return min((Centre.MEDIAN, Centre.FASTEST), key=lambda centre: _apart(sides, centre, in_turn))


def _apart(sides: Sequence[Sequence[Ints]], centre: Centre, in_turn: bool) -> float:
    """The variance of runs of one thing, as logarithms; of runs in turn that of the ratios of neighbours, halved."""
    logs = [np.log([float(centre.of(steps)) for steps in runs]) for runs in sides]
    if in_turn and len(logs) == 2:
        return float((logs[0] - logs[1]).var(ddof=1)) / 2
    freedom = [len(each) - 1 for each in logs]
    return float(np.average([each.var(ddof=1) for each in logs], weights=freedom))


@dataclass(frozen=True, eq=False)
class _Side:
    centres: Floats  # of each run
    within_frac: Floats  # of each run: how uncertain its centre is by the steps alone, as a standard deviation
    draws: Floats  # resampled deviations of the mean centre, as logarithms

    @classmethod
    def of(cls, runs: Sequence[Ints], centre: Centre, random: np.random.Generator) -> _Side:
        centres = np.array([float(centre.of(steps)) for steps in runs])
        draws = [_resampled(steps, centre, random) for steps in runs]
        shares = centres / centres.sum()
        together = np.zeros(RESAMPLES)
        for share, drawn in zip(shares, draws, strict=True):
            together += share * drawn
        return cls(centres, np.array([drawn.std() for drawn in draws]), together)


def _resampled(steps_ns: Ints, centre: Centre, random: np.random.Generator) -> Floats:
    """Deviations of a run's centre when blocks of its steps are drawn anew, as logarithms of ratios."""
    count = len(steps_ns)
    if count < 2:
        return np.zeros(RESAMPLES)
    values = np.asarray(steps_ns, np.float64)
    if count > MOST_STEPS:
        values = values[np.linspace(0, count - 1, MOST_STEPS).astype(np.int64)]
        count = MOST_STEPS
    length = block_length(values)
    blocks = -(-count // length)
    starts = random.integers(0, count, (RESAMPLES, blocks))
    picked = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    drawn = np.log(centre.of(values[picked], axis=1) / centre.of(values))
    # Few blocks vary less among themselves than what they were drawn from.
    whole = max(2.0, count / length)
    return np.asarray((drawn - drawn.mean()) * math.sqrt(whole / (whole - 1)), np.float64)


def block_length(values: Floats) -> int:
    """How many neighbouring steps belong together, by how alike neighbours are (Politis and White, for AR(1))."""
    count = len(values)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if count < 2 * LEAST_BLOCKS or not power or values.min() == values.max():
        return 1
    # Of neighbours, or of those a few steps on: a slow drift under much noise shows only there.
    alike = max(0.0, *(float(ranks[lag:] @ ranks[:-lag]) / power for lag in (1, 2, 4)))
    alike = min(alike, 0.97)
    length = (6 * alike**2 / (1 - alike**2) ** 2 * count) ** (1 / 3)
    return int(max(1, min(math.ceil(length), count // LEAST_BLOCKS)))


def _assumed(runs: Sequence[Ints]) -> float:
    """How much runs of one program may differ, judged by how much the steps within these do."""
    quartiles = [np.percentile(steps, (25, 50, 75)) for steps in runs]
    spread = float(np.median([(high - low) / 1.349 / middle for low, middle, high in quartiles]))
    return min(MOST_BETWEEN, max(LEAST_BETWEEN, BETWEEN_OF_WITHIN * spread))


def _neighbours(sides: Sequence[_Side], assumed: float) -> tuple[float, float]:
    """How much the ratios of neighbours differ, and how well that is known: what differs within runs is in them."""
    one, other = sides
    apart = float(np.log(one.centres / other.centres).var(ddof=1))
    count = len(one.centres) - 1
    return math.sqrt((PRIOR_RUNS * 2 * assumed**2 + count * apart) / (PRIOR_RUNS + count)), PRIOR_RUNS + count


def _between(sides: Sequence[_Side], assumed: float, in_turn: bool) -> tuple[float, float]:
    """How much runs of one program differ beyond what their steps explain, and how well that is known.

    Both what repeats show and what is assumed count; of runs in turn, the differences of neighbours show it.
    """
    shown: list[tuple[float, float]] = []  # variances and their degrees of freedom
    if in_turn:
        one, other = sides
        apart = np.log(one.centres / other.centres).var(ddof=1)
        explained = (one.within_frac**2 + other.within_frac**2).mean()
        shown.append((float(apart - explained) / 2, len(one.centres) - 1))
        assumed *= IN_TURN
    else:
        for side in sides:
            if len(side.centres) > 1:
                beyond = np.log(side.centres).var(ddof=1) - (side.within_frac**2).mean()
                shown.append((float(beyond), len(side.centres) - 1))
    known = sum(freedom for _, freedom in shown)
    seen = sum(max(0.0, variance) * freedom for variance, freedom in shown)
    between = math.sqrt((PRIOR_RUNS * assumed**2 + seen) / (PRIOR_RUNS + known))
    return between, max(LEAST_FREEDOM, PRIOR_RUNS + known)
