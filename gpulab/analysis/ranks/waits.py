"""Waits between the ranks of a job: who waits for whom, how late each rank is in each step, and who is last.

A collective that synchronises is shortest on the rank that arrives last. That duration is the transfer; what it lasts
longer on another rank is that rank's wait for the last one. Durations suffice, so clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.ranks.matching import MatchedCollectives, match_collectives
from gpulab.analysis.ranks.persistence import is_persistent
from gpulab.intervals import Ints
from gpulab.run import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupWaits:
    """Waits of the ranks of one process group, from the collectives that all of its ranks recorded."""

    group: str  # "" if unnamed
    members: tuple[int, ...]  # indices of its ranks in the job
    steps: int  # steps with compared collectives
    collectives: int  # compared
    matrix_ns: Floats  # members x members: exposed wait of the row's rank for the column's rank, per step
    transfer_ns: float  # from the arrival of the last rank to the end, per step: mean; hidden by kernels or not
    is_persistent: bool  # the member that is last most often is not so by chance
    last_steps: Floats  # per member: the number of steps in which it arrives last; ranks that tie share a step
    skew_ns: Ints  # members x steps: arrival after the first rank, in the step's collective that differs most

    @property
    def waits_ns(self) -> Floats:
        """Exposed wait of each member per step: mean over steps."""
        waits: Floats = self.matrix_ns.sum(axis=1)
        return waits

    @property
    def caused_ns(self) -> Floats:
        """Exposed wait that each member causes per step, summed over the ranks that wait for it: mean over steps."""
        caused: Floats = self.matrix_ns.sum(axis=0)
        return caused

    @property
    def last_frac(self) -> float:
        """Share of the steps in which the rank that is last most often is last."""
        return float(self.last_steps.max() / max(1, self.steps))

    @property
    def latest(self) -> int:
        """Index in the job of the rank that is last most often."""
        return self.members[int(self.last_steps.argmax())]


@dataclass(frozen=True, kw_only=True, eq=False)
class JobWaits:
    """Waits between all ranks of a job. Indices are those of its runs."""

    matched: MatchedCollectives
    groups: tuple[GroupWaits, ...]  # those with most waiting first
    step_numbers: Ints  # the compared steps, as numbered on the first rank of each group
    matrix_ns: Floats  # ranks x ranks: exposed wait of the row's rank for the column's rank, per step, all groups
    skew_ns: Floats  # ranks x steps: as in GroupWaits, for the group that differs most; NaN without a collective

    @property
    def waits_ns(self) -> Floats:
        """Exposed wait of each rank per step: mean over steps."""
        waits: Floats = self.matrix_ns.sum(axis=1)
        return waits

    @property
    def caused_ns(self) -> Floats:
        """Exposed wait that each rank causes per step, summed over the ranks that wait for it."""
        caused: Floats = self.matrix_ns.sum(axis=0)
        return caused


def job_waits(runs: Sequence[Run]) -> JobWaits | None:
    """Compute the waits between these ranks; None if no group's collectives were recorded by all of its ranks."""
    matched = match_collectives(runs)
    return None if matched is None else waits_of(matched)


def waits_of(all_matched: MatchedCollectives) -> JobWaits | None:
    """Compute the waits at matched collectives; those that a rank of the group did not record are left out."""
    matched = all_matched.select(all_matched.complete)
    if not len(matched):
        return None
    # A name may be that of other ranks later in the run: the members tell such groups apart.
    _, of_team = np.unique(matched.member, axis=0, return_inverse=True)
    teams = of_team.reshape(-1) * len(matched.groups) + matched.group
    groups = [_group_waits(matched.select(teams == team)) for team in np.unique(teams)]
    numbers = np.unique(matched.step)
    ranks = len(matched.ranks)
    matrix = np.zeros((ranks, ranks))
    for group in groups:
        matrix[np.ix_(group.members, group.members)] += group.matrix_ns * group.steps / len(numbers)
    return JobWaits(
        matched=matched,
        groups=tuple(sorted(groups, key=lambda group: -group.matrix_ns.sum())),
        step_numbers=numbers,
        matrix_ns=matrix,
        skew_ns=_job_skew(matched, numbers),
    )


def _group_waits(matched: MatchedCollectives) -> GroupWaits:
    """Return the waits of one group, whose ranks take part in all of these collectives."""
    members = np.flatnonzero(matched.member[0])
    dur, waits = matched.dur_ns[:, members], matched.exposed_wait_ns[:, members]
    last = _last_shares(dur)
    numbers, of_step = np.unique(matched.step, return_inverse=True)
    matrix = waits.astype(np.float64).T @ last
    step_dur = np.zeros((len(numbers), len(members)), np.int64)
    np.add.at(step_dur, of_step, dur)
    is_apart = np.ptp(step_dur, axis=1) > 0  # in other steps, all arrive at the same time
    last_steps = _last_shares(step_dur[is_apart]).sum(axis=0)
    return GroupWaits(
        group=matched.groups[int(matched.group[0])],
        members=tuple(members.tolist()),
        steps=len(numbers),
        collectives=len(matched),
        matrix_ns=matrix / len(numbers),
        transfer_ns=float(matched.transfer_ns.sum() / len(numbers)),
        is_persistent=is_persistent(step_dur.T, int(last_steps.argmax())),
        last_steps=last_steps,
        skew_ns=_skew(dur, of_step),
    )


def _last_shares(dur_ns: Ints) -> Floats:
    """Return 1 where a rank arrives last, as its collective is shortest; ranks that arrive together share it."""
    is_last = dur_ns == dur_ns.min(axis=1, keepdims=True)
    shares: Floats = is_last / is_last.sum(axis=1, keepdims=True)
    return shares


def _skew(dur_ns: Ints, of_step: Ints) -> Ints:
    """Return members x steps: how much later than the first each arrives, where the step's arrivals differ most."""
    spread = np.ptp(dur_ns, axis=1)
    order = np.lexsort((spread, of_step))
    widest = order[np.append(of_step[order][1:] != of_step[order][:-1], True)]
    late: Ints = dur_ns[widest].max(axis=1, keepdims=True) - dur_ns[widest]
    return late.T


def _job_skew(matched: MatchedCollectives, numbers: Ints) -> Floats:
    """Return ranks x steps: the same over all groups of a rank."""
    skew = np.full((len(matched.ranks), len(numbers)), np.nan)
    spread = np.where(matched.member, matched.dur_ns, 0).max(axis=1) - matched.transfer_ns
    late = np.where(matched.member, matched.dur_ns, 0).max(axis=1, keepdims=True) - matched.dur_ns
    column = np.searchsorted(numbers, matched.step)
    for index in np.argsort(spread, kind="stable").tolist():  # the widest is written last
        ranks = matched.member[index]
        skew[ranks, column[index]] = late[index, ranks]
    return skew
