"""Match the collectives of all ranks of a job: one row per collective, one column per rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.arrivals import RankArrivals, rank_arrivals
from gpulab.analysis.ranks.stragglers import Rank, ranks_with_collectives
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints
from gpulab.run import Run

ABSENT = -1


@dataclass(frozen=True, eq=False)
class MatchedCollectives:
    """Collectives in interior steps that several ranks recorded, in order of time on their first rank.

    Columns of shape (collectives, ranks) have a column for each rank; an entry without a member is 0.
    """

    ranks: tuple[Rank, ...]
    member: Mask  # collectives x ranks: this rank recorded it
    row: Ints  # collectives x ranks: its row in the collectives of that rank; ABSENT without a member
    start_ns: Ints  # collectives x ranks, on the clock of that rank
    dur_ns: Ints  # collectives x ranks
    exposed_ns: Ints  # collectives x ranks: part of it that no kernel overlaps
    step: Ints  # the step in which it starts, on its first rank
    kind: Ints  # an index into gpulab.analysis.ranks.collectives.KINDS
    bytes: Ints  # as in Collectives; ABSENT if unknown
    group: Ints  # an index into `groups`
    groups: tuple[str, ...]
    group_size: Ints  # ranks of its group; ABSENT if unknown

    def __len__(self) -> int:
        return len(self.step)

    @property
    def complete(self) -> Mask:
        """Whether all ranks of the group recorded it; if the size of the group is unknown, all ranks of the job."""
        size = np.where(self.group_size > 0, self.group_size, len(self.ranks))
        mask: Mask = self.member.sum(axis=1) == size
        return mask

    def select(self, mask: Mask) -> MatchedCollectives:
        """Return these collectives."""
        names = ("member", "row", "start_ns", "dur_ns", "exposed_ns", "step", "kind", "bytes", "group", "group_size")
        return MatchedCollectives(
            ranks=self.ranks, groups=self.groups, **{name: getattr(self, name)[mask] for name in names}
        )

    @property
    def transfer_ns(self) -> Ints:
        """The time from the arrival of the last rank: the shortest duration on a rank."""
        longest = np.iinfo(np.int64).max
        shortest: Ints = np.where(self.member, self.dur_ns, longest).min(axis=1, initial=longest)
        return shortest

    @property
    def last(self) -> Ints:
        """The index of the rank that arrives last: the one on which the collective is shortest."""
        index: Ints = np.where(self.member, self.dur_ns, np.iinfo(np.int64).max).argmin(axis=1)
        return index

    @property
    def wait_ns(self) -> Ints:
        """Collectives x ranks: how long this rank waits for the last one, hidden by kernels or not."""
        return np.where(self.member, self.dur_ns - self.transfer_ns[:, None], 0)

    @property
    def exposed_wait_ns(self) -> Ints:
        """Collectives x ranks: the part of the wait that no kernel hides."""
        return np.minimum(self.wait_ns, self.exposed_ns)


def match_collectives(runs: Sequence[Run]) -> MatchedCollectives | None:
    """Match the collectives that synchronise the ranks of a group, of whichever group.

    Collectives of several groups with the same name are left out: the ranks of each are not recorded. None if one of
    the runs has no collectives in interior steps, or if no two ranks share one.
    """
    ranks = ranks_with_collectives(runs)
    if len(ranks) < 2 or len(ranks) < len(runs):
        return None
    sides = [
        rank_arrivals(rank.run, rank.steps, rank.collectives, np.ones(len(rank.collectives), bool)) for rank in ranks
    ]
    matched = _joined(ranks, sides)
    return matched if len(matched) else None


def _joined(ranks: tuple[Rank, ...], sides: Sequence[RankArrivals]) -> MatchedCollectives:
    keys, count = np.unique(np.concatenate([side.key for side in sides]), return_counts=True)
    keys = keys[count > 1]
    shape = len(keys), len(ranks)
    row, first = np.full(shape, ABSENT, np.int64), np.full(len(keys), ABSENT, np.int64)
    start, dur, exposed = (np.zeros(shape, np.int64) for _ in range(3))
    step, kind, size, group, group_size = (np.full(len(keys), ABSENT, np.int64) for _ in range(5))
    groups: dict[str, int] = {}
    for index, (rank, side) in enumerate(zip(ranks, sides, strict=True)):
        shared = side.select(np.isin(side.key, keys, assume_unique=True))
        at = np.searchsorted(keys, shared.key)
        row[at, index], start[at, index] = shared.row, shared.start_ns
        dur[at, index], exposed[at, index] = shared.dur_ns, shared.exposed_ns
        new = first[at] == ABSENT
        target, rows = at[new], shared.row[new]
        first[target], step[target] = index, shared.step[new]
        kind[target], size[target] = rank.collectives.kind[rows], rank.collectives.bytes[rows]
        group_size[target] = rank.collectives.group_size[rows]
        names = [*rank.collectives.groups, ""]
        codes = np.array([groups.setdefault(name, len(groups)) for name in names], np.int64)
        group[target] = codes[rank.collectives.group[rows]]
    # More ranks than the group has: several groups have this name, and their collectives cannot be told apart.
    is_clear = (group_size <= 0) | ((row != ABSENT).sum(axis=1) <= group_size)
    order = np.lexsort((start[np.arange(len(keys)), first], step))
    order = order[is_clear[order]]
    return MatchedCollectives(
        ranks=ranks,
        member=row[order] != ABSENT,
        row=row[order],
        start_ns=start[order],
        dur_ns=dur[order],
        exposed_ns=exposed[order],
        step=step[order],
        kind=kind[order],
        bytes=size[order],
        group=group[order],
        groups=tuple(groups),
        group_size=group_size[order],
    )
