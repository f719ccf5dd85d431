"""Arrivals at collectives: which rank arrives last, and how long the others wait, from a few columns of each rank.

A collective ends at the same time on all ranks. It is shortest on the rank that arrives last; the additional time on
the other ranks is waiting. Durations suffice for this, so the clocks of the ranks need not agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, SYNCHRONISING_KINDS, Collectives
from gpulab.analysis.ranks.persistence import is_persistent
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.intervals import Ints
from gpulab.run import Run
from gpulab.tables import EventKind

MIN_STRAGGLER_STEPS = 3  # a rank may be last in fewer steps by chance
_NUMBER = re.compile(r"#(\d+)")


@dataclass(frozen=True, eq=False)
class RankArrivals:
    """The collectives of one rank in interior steps that other ranks must reach, too, by key; all columns are int64."""

    key: Ints  # equal on every rank for the same collective; sorted and unique
    row: Ints  # index in the collectives of this rank
    step: Ints  # number of the step in which it starts, on this rank
    start_ns: Ints  # on the clock of this rank
    dur_ns: Ints
    exposed_ns: Ints  # part of it that no kernel overlaps

    def __len__(self) -> int:
        return len(self.key)

    def select(self, index: Ints | Mask) -> RankArrivals:
        """Return the collectives at these positions."""
        columns = (self.key, self.row, self.step, self.start_ns, self.dur_ns, self.exposed_ns)
        return RankArrivals(*(column[index] for column in columns))


@dataclass(frozen=True, eq=False)
class ArrivalOrder:
    """Which rank arrives last in each step, and how long the others wait. Arrays have one row per rank."""

    index: int  # of the rank that arrives last most often
    last: Ints  # per step, the index of the rank that arrives last
    rows: Ints  # rank x collective: its row in the collectives of that rank
    waits_ns: Ints  # rank x collective: the exposed wait for the last rank
    step_waits_ns: Ints  # rank x step: the same, summed over the collectives of a step
    last_frac: float  # share of the steps in which that rank arrives last
    is_persistent: bool  # equal ranks would hardly have one that is last so often, or so much later
    others_wait_ns: int  # exposed wait of the other ranks per step: mean over ranks, median over steps
    gain_ns: int  # gain per step if that rank arrived together with the second-last rank

    @property
    def steps(self) -> int:
        """Number of compared steps."""
        return len(self.last)

    @property
    def rank_waits_ns(self) -> tuple[int, ...]:
        """Wait of each rank per step, median over steps."""
        return tuple(int(np.median(waits)) for waits in self.step_waits_ns)


def rank_arrivals(run: Run, steps: Steps, all_collectives: Collectives, mask: Mask) -> RankArrivals:
    """Return the arrivals at those of these collectives that synchronise all ranks of a group.

    `mask`: the collectives of the group, of all kinds.
    """
    rows = np.flatnonzero(all_collectives.kind_mask(*SYNCHRONISING_KINDS) & mask)
    keys, rows = _keys(run, steps, all_collectives, rows)
    inside = all_collectives.interior[rows]
    keys, rows = keys[inside], rows[inside]
    start_ns = all_collectives.start_ns[rows]
    return RankArrivals(
        key=keys,
        row=rows,
        step=np.searchsorted(steps.start_ns, start_ns, side="right"),
        start_ns=start_ns,
        dur_ns=all_collectives.dur_ns[rows],
        exposed_ns=all_collectives.exposed_ns[rows],
    )


def shared_arrivals(sides: Sequence[RankArrivals]) -> tuple[RankArrivals, ...]:
    """Return the collectives that all ranks recorded, in the same order on each rank."""
    shared = sides[0].key
    for side in sides[1:]:
        shared = np.intersect1d(shared, side.key, assume_unique=True)
    return tuple(side.select(np.searchsorted(side.key, shared)) for side in sides)


def compare_arrivals(sides: Sequence[RankArrivals]) -> ArrivalOrder | None:
    """Compare the arrivals of two ranks or more; None if they share collectives of fewer than three steps."""
    sides = shared_arrivals(sides)
    if not len(sides[0]):
        return None
    _, of_step = np.unique(sides[0].step, return_inverse=True)
    step_count = int(of_step.max()) + 1
    if step_count < MIN_STRAGGLER_STEPS:
        return None
    dur = np.array([side.dur_ns for side in sides])
    waits = np.minimum(dur - dur.min(axis=0), np.array([side.exposed_ns for side in sides]))
    step_dur = _by_step(dur, of_step, step_count)
    last = step_dur.argmin(axis=0)  # the last rank has the least time
    latest = int(np.bincount(last, minlength=len(sides)).argmax())
    step_waits = _by_step(waits, of_step, step_count)
    others = np.delete(np.arange(len(sides)), latest)
    next_to_last = np.delete(dur, latest, axis=0).min(axis=0)
    gain = np.minimum(np.maximum(next_to_last - dur[latest], 0), waits[others].max(axis=0))
    return ArrivalOrder(
        index=latest,
        last=last,
        rows=np.array([side.row for side in sides]),
        waits_ns=waits,
        step_waits_ns=step_waits,
        last_frac=float((last == latest).mean()),
        is_persistent=is_persistent(step_dur, latest),
        others_wait_ns=int(np.median(step_waits[others].mean(axis=0))),
        gain_ns=int(np.median(np.bincount(of_step, weights=gain, minlength=step_count))),
    )


def _by_step(values: Ints, of_step: Ints, step_count: int) -> Ints:
    """Return, per rank, the sum over the collectives of each step."""
    sums = np.zeros((len(values), step_count), np.int64)
    for rank, row in enumerate(values):
        np.add.at(sums[rank], of_step, row)
    return sums


def _keys(run: Run, steps: Steps, all_collectives: Collectives, rows: Ints) -> tuple[Ints, Ints]:
    """Return a key for each of these collectives, equal on every rank, sorted, and its row.

    The key is the sequence number within its group if known, else the step of its launch and its position among the
    collectives of its kind in that step.
    """
    group = _group_numbers(all_collectives)[rows]
    if len(rows) and (all_collectives.sequence[rows] >= 0).all():
        keys = group * (1 << 40) + all_collectives.sequence[rows]
    else:
        step = _step_numbers(run, steps)[_launch_steps(run, steps, all_collectives, rows)]
        family = (step * len(KINDS) + all_collectives.kind[rows]) * (1 << 10) + group % (1 << 10)
        keys = family * (1 << 20) + _position_in_family(family)
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    # Keys that are not unique cannot be matched.
    is_unique = np.ones(len(keys), bool)
    duplicates = np.flatnonzero(keys[1:] == keys[:-1])
    is_unique[duplicates] = is_unique[duplicates + 1] = False
    return keys[is_unique], rows[is_unique]


def _group_numbers(all_collectives: Collectives) -> Ints:
    """Return a number for the group of each collective that is equal on every rank: a hash of its name."""
    numbers = [crc32(name.encode()) % (1 << 20) for name in all_collectives.groups]
    return np.array([*numbers, 0], np.int64)[all_collectives.group]


def _position_in_family(family: Ints) -> Ints:
    """Return the position of each item within its family, in the given order."""
    order = np.argsort(family, kind="stable")
    starts = np.append(True, family[order][1:] != family[order][:-1])
    index = np.arange(len(family))
    position = np.empty(len(family), np.int64)
    position[order] = index - np.maximum.accumulate(np.where(starts, index, 0))
    return position


def _launch_steps(run: Run, steps: Steps, all_collectives: Collectives, rows: Ints) -> Ints:
    """Return the step of each launch, as the host may run ahead; without a launch, the step in which it starts."""
    events = run.event_rows
    at = all_collectives.start_ns[rows].copy()
    ids = events["correlation"][all_collectives.event[rows]]
    calls = np.flatnonzero(events.is_kind(EventKind.LAUNCH) & (events["correlation"] >= 0))
    if len(calls) and len(ids):
        calls = calls[np.argsort(events["correlation"][calls], kind="stable")]
        call_ids = events["correlation"][calls]
        index = np.minimum(np.searchsorted(call_ids, ids), len(call_ids) - 1)
        linked = call_ids[index] == ids
        at[linked] = events["start_ns"][calls[index[linked]]]
    return np.maximum(np.searchsorted(steps.start_ns, at, side="right") - 1, 0)


def _step_numbers(run: Run, steps: Steps) -> Ints:
    """Return the number of each step: the profiler's, which is equal on all ranks, else its index."""
    index = np.arange(len(steps))
    if steps.detected_by != "ProfilerStep":
        return index
    marks = run.event_rows.of_kind(EventKind.STEP)
    names = marks.text("name").to_list()
    matches = [_NUMBER.search(word or "") for word in names]
    if len(matches) != len(index) or not all(matches):
        return index
    numbers = np.array([int(match[1]) for match in matches if match], np.int64)
    return numbers[np.argsort(marks["start_ns"], kind="stable")] % (1 << 20)
