"""Confidence interval of the ratio of two step times: noise within a run and variance between runs.

Successive steps are correlated: a machine warms up, another program starts and stops. So blocks of successive steps are
resampled (block bootstrap), and blocks are longer where correlation is stronger. Two runs of the same program differ by
more than their steps show: memory layout and clocks differ. Repeated runs show this variance. Without repeats it is
assumed from measurements; a few repeats adjust the assumption in proportion to their number.
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

RESAMPLES = 2000  # enough for the 2.5 % quantile to be stable to three figures
MAX_RESAMPLED_STEPS = 500  # longer runs are thinned evenly to this many: more would not narrow the interval
MIN_BLOCKS = 4  # fewer blocks do not show how much blocks differ
# Standard deviation of the logarithm of the typical step time between runs of the same program, as a multiple of the
# spread within runs. The two are related: on a shared machine with two cores, where undisturbed steps spread by 5-12 %,
# medians of runs in fresh processes differed by 6-11 %, those of alternating runs in one process by 2-4 %.
BETWEEN_OF_WITHIN = 1.0
MIN_BETWEEN, MAX_BETWEEN = 0.01, 0.08
ALTERNATING_FACTOR = 0.3  # factor on this for adjacent, alternating runs
PRIOR_RUNS = 3.0  # the assumption has the weight of this many repeats
MIN_ALTERNATING_PAIRS = 6  # with at least this many alternating pairs, their ratios alone determine the uncertainty
MIN_REPEATED_RUNS = 3  # with at least this many runs, their spread shows the effect of other programs
MIN_STEPS_FOR_FASTEST = 20  # with this many steps per run, the fastest tenth has two steps
MIN_FREEDOM = 6.0  # minimum degrees of freedom of Student's t: uncertainty of the assumption itself


class Statistic(Enum):
    """The statistic that represents the step times of a run."""

    MEDIAN = "median"
    MEAN = "mean"  # for effects that hit only some steps
    FASTEST = "fastest tenth"  # the 10 % quantile: other load can only make steps longer

    def compute(self, steps: Any, axis: int | None = None) -> Any:
        """Compute the statistic of these step times, along an axis if given."""
        if self is Statistic.MEAN:
            return np.mean(steps, axis=axis)
        return np.percentile(steps, 50 if self is Statistic.MEDIAN else 10, axis=axis)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Typical step time before / after, with its 95 % confidence interval. Above one: `after` is faster."""

    value: float
    low: float
    high: float
    sure_low: float  # 99 % interval: a difference is significant if it excludes one
    sure_high: float
    between_runs_frac: float  # assumed standard deviation between runs of the same program, as a fraction

    @property
    def significant(self) -> bool:
        """Whether the 99 % interval excludes one."""
        return not self.sure_low <= 1.0 <= self.sure_high

    @property
    def excludes_one(self) -> bool:
        """Whether the 95 % interval excludes one."""
        return not self.low <= 1.0 <= self.high


def step_time_ratio(
    before: Sequence[Ints],
    after: Sequence[Ints],
    *,
    statistic: Statistic = Statistic.MEDIAN,
    alternating: bool = False,
    extra_frac: tuple[float, float] = (0.0, 0.0),
    seed: int = 0,
) -> Ratio:
    """Compute the ratio of two sides, each with the step times of one run or several repeated ones. Deterministic.

    `in_turn`: the runs of both sides alternated, so that drift affects both equally. `extra_frac`: additional standard
    deviation between the runs of each side due to other programs; ignored for repeated runs, which show it themselves.
    """
    generator = np.random.default_rng(seed)
    sides = [_SideSamples.of(runs, statistic, generator) for runs in (before, after)]
    assumed = _assumed_spread([*before, *after])
    between, freedom = _spread_between_runs(sides, assumed, alternating)
    value = float(sides[0].centres.mean() / sides[1].centres.mean())
    if alternating and len(before) >= MIN_ALTERNATING_PAIRS:
        spread, freedom = _pair_spread(sides, assumed * ALTERNATING_FACTOR)
        draws = spread / math.sqrt(len(before)) * generator.standard_t(freedom, RESAMPLES)
    else:
        draws = np.zeros(RESAMPLES)
        for sign, side, extra in zip((1, -1), sides, extra_frac, strict=True):
            few_runs = len(side.centres) < MIN_REPEATED_RUNS
            spread = (math.hypot(between, extra) if few_runs else between) / math.sqrt(len(side.centres))
            draws += sign * (side.draws + spread * generator.standard_t(freedom, RESAMPLES))
    edges = value * np.exp(np.percentile(draws, (0.5, 2.5, 97.5, 99.5)))
    return Ratio(
        value=value,
        low=float(edges[1]),
        high=float(edges[2]),
        sure_low=float(edges[0]),
        sure_high=float(edges[3]),
        between_runs_frac=between,
    )


def steadiest_statistic(sides: Sequence[Sequence[Ints]], in_turn: bool) -> Statistic:
    """Choose the statistic by which repeated runs of each side differ least: the median or the fastest tenth.

    Only runs of the same side are compared, never the difference to be tested. On a shared machine the medians of runs
    of one program differed by 6-8 %, the fastest tenths of their steps by 4-5 %. With too few runs or steps, it is the
    median.
    """
    if (
        min(map(len, sides)) < MIN_REPEATED_RUNS
        or min(len(steps) for runs in sides for steps in runs) < MIN_STEPS_FOR_FASTEST
    ):
        return Statistic.MEDIAN
    return min((Statistic.MEDIAN, Statistic.FASTEST), key=lambda centre: _variance(sides, centre, in_turn))


def _variance(sides: Sequence[Sequence[Ints]], centre: Statistic, in_turn: bool) -> float:
    """Return the variance of log step times within a side; for alternating runs, half that of the ratios of pairs."""
    logs = [np.log([float(centre.compute(steps)) for steps in runs]) for runs in sides]
    if in_turn and len(logs) == 2:
        return float((logs[0] - logs[1]).var(ddof=1)) / 2
    freedom = [len(each) - 1 for each in logs]
    return float(np.average([each.var(ddof=1) for each in logs], weights=freedom))


@dataclass(frozen=True, eq=False)
class _SideSamples:
    centres: Floats  # the statistic of each run
    within_frac: Floats  # of each run: standard deviation of its statistic by resampling its steps
    draws: Floats  # resampled deviations of the mean statistic, as logarithms

    @classmethod
    def of(cls, runs: Sequence[Ints], centre: Statistic, generator: np.random.Generator) -> _SideSamples:
        centres = np.array([float(centre.compute(steps)) for steps in runs])
        draws = [_bootstrap_deviations(steps, centre, generator) for steps in runs]
        shares = centres / centres.sum()
        mean_draws = np.zeros(RESAMPLES)
        for share, deviations in zip(shares, draws, strict=True):
            mean_draws += share * deviations
        return cls(centres, np.array([deviations.std() for deviations in draws]), mean_draws)


def _bootstrap_deviations(steps_ns: Ints, centre: Statistic, generator: np.random.Generator) -> Floats:
    """Return deviations of a run's statistic when blocks of its steps are resampled, as logarithms of ratios."""
    count = len(steps_ns)
    if count < 2:
        return np.zeros(RESAMPLES)
    values = np.asarray(steps_ns, np.float64)
    if count > MAX_RESAMPLED_STEPS:
        values = values[np.linspace(0, count - 1, MAX_RESAMPLED_STEPS).astype(np.int64)]
        count = MAX_RESAMPLED_STEPS
    length = block_length(values)
    blocks = -(-count // length)
    starts = generator.integers(0, count, (RESAMPLES, blocks))
    index = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count] % count
    deviations = np.log(centre.compute(values[index], axis=1) / centre.compute(values))
    # The sample variance of few blocks is too small; this corrects it.
    effective_blocks = max(2.0, count / length)
    return np.asarray(
        (deviations - deviations.mean()) * math.sqrt(effective_blocks / (effective_blocks - 1)), np.float64
    )


def block_length(values: Floats) -> int:
    """Return the block length for the bootstrap, from autocorrelation (Politis and White, for AR(1))."""
    count = len(values)
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if count < 2 * MIN_BLOCKS or not power or values.min() == values.max():
        return 1
    # Several lags: a slow drift under strong noise shows only at longer ones.
    correlation = max(0.0, *(float(ranks[lag:] @ ranks[:-lag]) / power for lag in (1, 2, 4)))
    correlation = min(correlation, 0.97)
    length = (6 * correlation**2 / (1 - correlation**2) ** 2 * count) ** (1 / 3)
    return int(max(1, min(math.ceil(length), count // MIN_BLOCKS)))


def _assumed_spread(runs: Sequence[Ints]) -> float:
    """Return the assumed standard deviation between runs of one program, from the spread of steps within the runs."""
    quartiles = [np.percentile(steps, (25, 50, 75)) for steps in runs]
    spread = float(np.median([(high - low) / 1.349 / middle for low, middle, high in quartiles]))
    return min(MAX_BETWEEN, max(MIN_BETWEEN, BETWEEN_OF_WITHIN * spread))


def _pair_spread(sides: Sequence[_SideSamples], assumed: float) -> tuple[float, float]:
    """Return the standard deviation of the ratios of alternating pairs, and its degrees of freedom."""
    before, after = sides
    variance = float(np.log(before.centres / after.centres).var(ddof=1))
    count = len(before.centres) - 1
    return math.sqrt((PRIOR_RUNS * 2 * assumed**2 + count * variance) / (PRIOR_RUNS + count)), PRIOR_RUNS + count


def _spread_between_runs(sides: Sequence[_SideSamples], assumed: float, in_turn: bool) -> tuple[float, float]:
    """Return the standard deviation between runs beyond the noise of their steps, and its degrees of freedom.

    It combines the variance of repeats with the assumption. For alternating runs, differences of pairs show it.
    """
    variances: list[tuple[float, float]] = []  # variances and their degrees of freedom
    if in_turn:
        before, after = sides
        pair_variance = np.log(before.centres / after.centres).var(ddof=1)
        explained = (before.within_frac**2 + after.within_frac**2).mean()
        variances.append((float(pair_variance - explained) / 2, len(before.centres) - 1))
        assumed *= ALTERNATING_FACTOR
    else:
        for side in sides:
            if len(side.centres) > 1:
                beyond = np.log(side.centres).var(ddof=1) - (side.within_frac**2).mean()
                variances.append((float(beyond), len(side.centres) - 1))
    known_freedom = sum(freedom for _, freedom in variances)
    observed = sum(max(0.0, variance) * freedom for variance, freedom in variances)
    between = math.sqrt((PRIOR_RUNS * assumed**2 + observed) / (PRIOR_RUNS + known_freedom))
    return between, max(MIN_FREEDOM, PRIOR_RUNS + known_freedom)
