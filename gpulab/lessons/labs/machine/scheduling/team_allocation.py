"""A simulated week of four teams that share a pool of GPUs, and a rule that decides how many each of them has.

The need of a team is the number of GPUs that its jobs would keep busy, every ten minutes. A team that has fewer than it
needs waits; one that has more leaves GPUs idle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

TEAMS = ("vision", "speech", "ranking", "research")
STATIC_GPUS = 8  # of each team
PERIOD_MIN, DAY_PERIODS, WEEK_PERIODS = 10, 144, 7 * 144
RECENT_PERIODS = 6  # the last hour

Needs = Mapping[str, NDArray[np.float64]]
Rule = Callable[[int, Sequence[float]], int]


@dataclass(frozen=True, kw_only=True)
class AllocationOutcome:
    """A week of a rule: GPU-hours idle and missing, and how often a team's number of GPUs changed."""

    idle_gpu_h: float
    missing_gpu_h: float
    moves: int

    @property
    def cells(self) -> tuple[str, ...]:
        """The outcome as cells of a table."""
        return f"{self.idle_gpu_h:,.0f}", f"{self.missing_gpu_h:,.0f}", f"{self.moves:,}"


@cache
def generated_needs(seed: int = 0) -> Needs:
    """Return the need of each team over a week, which begins on a Monday."""
    generator = np.random.default_rng(seed)
    period = np.arange(WEEK_PERIODS)
    hour, weekend = period % DAY_PERIODS / 6, period // DAY_PERIODS >= 5
    base = {
        "vision": np.where(weekend, 1.0, 2.0 + 4.5 * ((hour > 9) & (hour < 19))),
        "speech": 3.0 + 3.0 * ((hour > 20) | (hour < 6)),  # large jobs run at night
        "ranking": np.where(hour < 4, 7.0, 1.5),  # trained again every night
        "research": np.repeat(generator.uniform(0, 8, 28), WEEK_PERIODS // 28),
    }
    return {team: _with_noise(generator, level) for team, level in base.items()}


def _with_noise(generator: np.random.Generator, level: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a level with noise of about half a GPU, and with pauses of ten or twenty minutes between jobs."""
    noise = np.convolve(generator.normal(0, 0.6, len(level) + 1), np.ones(2) / 2, "valid")
    need = np.clip(level + noise, 0, STATIC_GPUS)
    for start in np.flatnonzero(generator.random(len(level)) < 1 / 30):
        need[start : start + int(generator.integers(1, 3))] *= 0.3
    return np.asarray(need, np.float64)


def allocate(rule: Rule, needs: Needs | None = None) -> AllocationOutcome:
    """Apply a rule to each team every ten minutes: `rule(now, recent)` is the number of GPUs for the next ten minutes.

    `recent`: the need in the last hour, the latest last. What the teams have is never more than the pool has.
    """
    idle, missing, moves = 0.0, 0.0, 0
    for series in (generated_needs() if needs is None else needs).values():
        gpus = STATIC_GPUS
        for period in range(RECENT_PERIODS, len(series)):
            target_gpus = min(STATIC_GPUS, max(0, int(rule(gpus, series[period - RECENT_PERIODS : period].tolist()))))
            moves += target_gpus != gpus
            gpus = target_gpus
            idle += max(0.0, gpus - float(series[period])) * PERIOD_MIN / 60
            missing += max(0.0, float(series[period]) - gpus) * PERIOD_MIN / 60
    return AllocationOutcome(idle_gpu_h=idle, missing_gpu_h=missing, moves=moves)


def keep_all(gpus: int, recent: Sequence[float]) -> int:
    """The static rule: the team keeps what it has."""
    return gpus


def follow_need(gpus: int, recent: Sequence[float]) -> int:
    """Follow the latest reading, up and down."""
    return math.ceil(recent[-1])


def allocations_of(rule: Rule, team: str, periods: int = DAY_PERIODS) -> dict[float, float]:
    """Return what a team has over the first hours, by hour."""
    series, gpus, line = generated_needs()[team], STATIC_GPUS, {}
    for period in range(RECENT_PERIODS, periods):
        gpus = min(STATIC_GPUS, max(0, int(rule(gpus, series[period - RECENT_PERIODS : period].tolist()))))
        line[period * PERIOD_MIN / 60] = float(gpus)
    return line
