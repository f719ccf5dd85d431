"""Unequal work: whether ranks arrive late at collectives in the steps in which they compute more than the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.ranks.matching import MatchedCollectives
from gpulab.analysis.ranks.stragglers import Rank
from gpulab.analysis.ranks.waits import JobWaits
from gpulab.intervals import Ints

Floats = NDArray[np.float64]
COMPUTE_PARTS = ("matmul", "kernels", "compute")  # of the ledger


@dataclass(frozen=True, kw_only=True, eq=False)
class UnequalWork:
    """Compute of each rank and step beside its arrival, in the steps that all ranks share."""

    work_ns: Floats  # ranks x steps: time in kernels, or in long operators on a CPU
    skew_ns: Floats  # ranks x steps: arrival after the first rank
    correlation: float  # of both, after the mean over ranks is subtracted in each step; NaN if either is constant
    mean_wait_ns: float  # exposed wait per step: mean over ranks
    last_frac: float  # share of the steps in which the rank that is last most often is last
    is_persistent: bool  # that rank is not last so often by chance
    distinct_last: int  # ranks that are last in some step

    @property
    def steps(self) -> int:
        """Number of compared steps."""
        return int(self.work_ns.shape[1])

    @property
    def spread_ns(self) -> float:
        """Compute of the busiest rank of a step over that of the least busy one: median over steps."""
        return float(np.median(np.ptp(self.work_ns, axis=0)))


def unequal_work(waits: JobWaits) -> UnequalWork | None:
    """Compare compute with arrival times in one process group that has all ranks; None without such a group."""
    everyone = tuple(range(len(waits.matched.ranks)))
    group = next((each for each in waits.groups if each.members == everyone), None)
    if group is None:
        return None
    work = np.stack([_work_by_step(waits.matched, index) for index in everyone])
    usable = ~np.isnan(work).any(axis=0) & ~np.isnan(waits.skew_ns).any(axis=0)
    if not usable.any():
        return None
    work, skew = work[:, usable], waits.skew_ns[:, usable]
    return UnequalWork(
        work_ns=work,
        skew_ns=skew,
        correlation=_correlation(work - work.mean(axis=0), skew - skew.mean(axis=0)),
        mean_wait_ns=float(group.waits_ns.mean()),
        last_frac=group.last_frac,
        is_persistent=group.is_persistent,
        distinct_last=int((group.last_steps > 0).sum()),
    )


def _work_by_step(matched: MatchedCollectives, index: int) -> Floats:
    """Return the compute of a rank in each compared step; NaN where its ledger has no such step."""
    rank = matched.ranks[index]
    numbers = np.unique(matched.step)
    work = np.full(len(numbers), np.nan)
    chosen = matched.member[:, index]
    at = np.searchsorted(rank.steps.start_ns, matched.start_ns[chosen, index], side="right") - 1
    by_index = _compute_ns(rank)
    work[np.searchsorted(numbers, matched.step[chosen])] = by_index[at]
    return work


def _compute_ns(rank: Rank) -> Floats:
    """Return the compute in each step of a rank; NaN in steps that are not in its ledger."""
    steps = rank.steps
    compute = np.full(len(steps.start_ns), np.nan)
    judged: Ints = np.flatnonzero(steps.interior & (steps.end_ns > steps.start_ns))
    compute[judged] = rank.ledger.sum_ns(*COMPUTE_PARTS)
    return compute


def _correlation(left: Floats, right: Floats) -> float:
    if not left.any() or not right.any():
        return float("nan")
    return float((left * right).sum() / np.sqrt((left**2).sum() * (right**2).sum()))
