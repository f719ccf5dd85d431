"""Stragglers of a job: for each process group, which rank arrives last at its collectives, and why.

The definition of a straggler is that of gpulab.analysis.ranks.arrivals and of the rule `straggler`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.arrivals import ArrivalOrder, RankArrivals, compare_arrivals, shared_arrivals
from gpulab.analysis.ranks.stragglers import excess_part_ns
from gpulab.fleet.rank_summary import GroupSummary, RankSummary
from gpulab.intervals import Ints
from gpulab.rules.ranks.stragglers import cause_clause, is_long_wait, is_straggler, late_part

_COMMON_FRAC = 0.5  # of the ranks: collectives that fewer recorded are not compared
_OVERLAP_FRAC = 0.8  # of these collectives: a rank that recorded fewer is not compared
_MAX_CELLS = 8_000_000  # ranks x collectives compared at once: 64 MB per column


@dataclass(frozen=True, kw_only=True)
class LateCause:
    """The part of the step that is longer on the straggler than on the median rank, in ns per step."""

    part: str  # key of the ledger, or "compute" for all kernels
    clause: str  # of a claim: " that waits for data"
    late_ns: int
    others_ns: int
    clock_mhz: float | None  # medians; None: not recorded
    others_clock_mhz: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupArrivals:
    """Arrivals of the ranks of one process group at the collectives that all of them recorded."""

    group: str  # "" if unnamed
    size: int | None  # ranks that the group has
    ranks: tuple[int, ...]  # compared; -1 for a rank whose number is unknown
    unmatched: int  # ranks of this group whose collectives could not be matched
    steps: int
    collectives: int  # compared
    late_rank: int  # the rank that is last in most steps
    late_host: str | None
    late_host_frac: float  # share of the steps in which a rank of that host is last
    last_frac: float  # share of the steps in which it is last
    last_steps: tuple[int, ...]  # per compared rank, the number of steps in which it is last
    others_wait_ns: int  # wait of the other ranks per step: mean over ranks, median over steps
    gain_ns: int  # gain per step if that rank arrived together with the second-last
    spread_ns: int  # time from the first arrival to the last: largest of a step, median over steps
    step_ns: int  # median recorded step over ranks
    is_persistent: bool  # one rank is the straggler, by the criteria of the rule
    has_long_wait: bool  # at least 5 % of a step, whichever rank is last
    cause: LateCause | None  # of a persistent straggler; None if no part of its step explains the wait
    waits_ns: tuple[int, ...]  # per compared rank, its wait per step
    clock_offset_ns: tuple[int | None, ...]  # per compared rank, its clock minus the median clock; None: unknown

    @property
    def late_ranks(self) -> tuple[tuple[int, int], ...]:
        """The ranks that are last in some steps, and in how many, most first."""
        pairs = [(rank, steps) for rank, steps in zip(self.ranks, self.last_steps, strict=True) if steps]
        return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))


def group_arrivals(ranks: Sequence[RankSummary]) -> tuple[GroupArrivals, ...]:
    """Return the comparable process groups of a job, those with the longest waits (times ranks) first."""
    members: dict[tuple[str, int | None], list[tuple[RankSummary, GroupSummary]]] = {}
    for summary in ranks:
        for group in summary.groups:
            if group.sampled:
                members.setdefault((group.name, group.size), []).append((summary, group))
    compared = [
        result for (name, size), sides in members.items() if (result := _compare(name, size, sides)) is not None
    ]
    return tuple(sorted(compared, key=lambda result: (-result.others_wait_ns * len(result.ranks), result.group)))


def _compare(name: str, size: int | None, sides: list[tuple[RankSummary, GroupSummary]]) -> GroupArrivals | None:
    if len(sides) < 2 or (size is not None and len(sides) > size):
        return None  # several groups or recordings have this name
    arrivals = [group.arrivals() for _, group in sides]
    chosen = _comparable(arrivals)
    shared = _limited(shared_arrivals([arrivals[n] for n in chosen])) if len(chosen) > 1 else ()
    order = compare_arrivals(shared) if shared else None
    if order is None:
        return None
    summaries = [sides[n][0] for n in chosen]
    return _described(name, size, len(sides) - len(chosen), summaries, shared, order)


def _comparable(sides: Sequence[RankArrivals]) -> list[int]:
    """Return the ranks that recorded most of the collectives that most ranks recorded."""
    keys, counts = np.unique(np.concatenate([side.key for side in sides]), return_counts=True)
    common = keys[counts >= max(2.0, _COMMON_FRAC * len(sides))]
    overlap = [np.isin(common, side.key, assume_unique=True).sum() for side in sides]
    return [n for n, number in enumerate(overlap) if len(common) and number >= _OVERLAP_FRAC * len(common)]


def _limited(sides: tuple[RankArrivals, ...]) -> tuple[RankArrivals, ...]:
    """Return fewer steps of many ranks, so that their columns fit into memory."""
    most = max(1, _MAX_CELLS // len(sides))
    if len(sides[0]) <= most:
        return sides
    steps, counts = np.unique(sides[0].step, return_counts=True)
    mask = np.isin(sides[0].step, steps[np.cumsum(counts) <= most])
    return tuple(side.select(mask) for side in sides)


def _described(
    name: str,
    size: int | None,
    unmatched: int,
    summaries: Sequence[RankSummary],
    shared: Sequence[RankArrivals],
    order: ArrivalOrder,
) -> GroupArrivals:
    numbers = tuple(-1 if summary.rank is None else summary.rank for summary in summaries)
    last = Counter(order.last.tolist())
    step_ns = int(np.median([summary.traced_ns or summary.step_ns or 0 for summary in summaries]))
    is_persistent = is_straggler(order.others_wait_ns, order, step_ns)
    host, host_frac = _late_host(summaries, last)
    return GroupArrivals(
        group=name,
        size=size,
        ranks=numbers,
        unmatched=unmatched,
        steps=order.steps,
        collectives=len(shared[0]),
        late_rank=numbers[order.index],
        late_host=host,
        late_host_frac=host_frac,
        last_frac=order.last_frac,
        last_steps=tuple(last[n] for n in range(len(numbers))),
        others_wait_ns=order.others_wait_ns,
        gain_ns=order.gain_ns,
        spread_ns=_step_spread(shared),
        step_ns=step_ns,
        is_persistent=is_persistent,
        has_long_wait=is_long_wait(order.others_wait_ns, step_ns),
        cause=_cause(summaries, order) if is_persistent else None,
        waits_ns=order.rank_waits_ns,
        clock_offset_ns=_clock_offsets(summaries, shared),
    )


def _step_spread(shared: Sequence[RankArrivals]) -> int:
    spread = np.ptp([side.dur_ns for side in shared], axis=0)
    steps, of_step = np.unique(shared[0].step, return_inverse=True)
    largest = np.zeros(len(steps), np.int64)
    np.maximum.at(largest, of_step, spread)
    return int(np.median(largest))


def _late_host(summaries: Sequence[RankSummary], last: Mapping[int, int]) -> tuple[str | None, float]:
    """Return the host whose ranks are last in most steps, and in which share of them."""
    hosts: Counter[str | None] = Counter()
    for index, steps in last.items():
        hosts[summaries[index].host] += steps
    host, steps = hosts.most_common(1)[0]
    return (host, steps / sum(last.values())) if host is not None else (None, 0.0)


def _cause(summaries: Sequence[RankSummary], order: ArrivalOrder) -> LateCause | None:
    late = summaries[order.index]
    others = [summary for n, summary in enumerate(summaries) if n != order.index]
    excess = excess_part_ns(late.median_part_ns, [summary.median_part_ns for summary in others])
    part = late_part(excess, order.others_wait_ns)
    if part is None:
        return None
    key, keys = part
    clocks = [summary.clock_mhz for summary in others if summary.clock_mhz is not None]
    others_clock = float(np.median(clocks)) if clocks else None
    return LateCause(
        part=key,
        clause=cause_clause(key, late.clock_mhz, others_clock, on_gpu=late.device != "cpu"),
        late_ns=sum(late.median_part_ns.get(name, 0) for name in keys),
        others_ns=int(np.median([sum(each.median_part_ns.get(name, 0) for name in keys) for each in others])),
        clock_mhz=late.clock_mhz,
        others_clock_mhz=others_clock,
    )


def _clock_offsets(summaries: Sequence[RankSummary], shared: Sequence[RankArrivals]) -> tuple[int | None, ...]:
    """Return how far the clock of each rank is ahead of the median: a collective ends at one instant on all ranks."""
    dated = [n for n, summary in enumerate(summaries) if summary.began_ns is not None]
    if not dated:
        return (None,) * len(summaries)
    ends: Ints = np.array([(summaries[n].began_ns or 0) + shared[n].start_ns + shared[n].dur_ns for n in dated])
    origin = ends[0, 0]  # int64 is exact, the float64 of a median only for small numbers
    relative = ends - origin
    offsets = np.median(relative - np.median(relative, axis=0), axis=1)
    by_index = {n: round(float(offset)) for n, offset in zip(dated, offsets, strict=True)}
    return tuple(by_index.get(n) for n in range(len(summaries)))
