"""Stragglers: find the rank that arrives last at the collectives, and how long the other ranks wait for it.

A collective ends at the same time on all ranks. It is shortest on the rank that arrives last; the additional time on
the other ranks is waiting. Only collectives that every rank must reach are compared: send and receive wait by design.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, SYNCHRONISING_KINDS, Collectives, collectives
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.intervals import Ints, Spans, union
from gpulab.run import Run
from gpulab.tables import EventKind

MIN_STRAGGLER_STEPS = 3  # a rank may be last in fewer steps by chance
_NUMBER = re.compile(r"#(\d+)")


@dataclass(frozen=True, eq=False)
class Rank:
    """One rank: its run, steps, ledger and collectives."""

    run: Run
    steps: Steps
    ledger: Ledger
    collectives: Collectives


@dataclass(frozen=True, eq=False)
class Straggler:
    """The straggler in the steps that all ranks recorded, and its cost."""

    ranks: tuple[Rank, ...]
    index: int  # index of the straggler: the side that arrives last most often
    last_frac: float  # share of the steps in which it arrives last
    steps: int  # number of compared steps
    collectives: int  # number of compared collectives
    others_wait_ns: int  # exposed wait of the other ranks per step: mean over ranks, median over steps
    gain_ns: int  # gain if the straggler arrived together with the second-last rank
    spans: tuple[Spans, ...]  # per side, the time it waits; for the straggler, the time the others wait for it
    waits_ns: tuple[int, ...]  # per side, its wait per step for the last rank


def ranks_with_collectives(runs: Sequence[Run]) -> tuple[Rank, ...]:
    """Return the ranks that have collectives in interior steps."""
    ranks = []
    for run in runs:
        rank_steps = find_steps(run)
        rank_ledger = build_ledger(run, rank_steps)
        if rank_ledger is None:
            continue
        rank_collectives = collectives(run, rank_steps, rank_ledger)
        if rank_collectives is not None:
            ranks.append(Rank(run, rank_steps, rank_ledger, rank_collectives))
    return tuple(ranks)


def find_straggler(runs: Sequence[Run]) -> Straggler | None:
    """Find the straggler and its cost; None if the collectives of the ranks cannot be matched."""
    ranks = ranks_with_collectives(runs)
    if len(ranks) < 2 or len(ranks) < len(runs):
        return None
    keys_by_rank = [_keys(side, len(runs)) for side in ranks]
    shared = keys_by_rank[0][0]
    for keys, _ in keys_by_rank[1:]:
        shared = np.intersect1d(shared, keys, assume_unique=True)
    if not len(shared):
        return None
    rows_by_rank = np.array([rows[np.searchsorted(keys, shared)] for keys, rows in keys_by_rank])
    in_interior = np.all(
        [side.collectives.interior[index] for side, index in zip(ranks, rows_by_rank, strict=True)], axis=0
    )
    rows_by_rank = rows_by_rank[:, in_interior]
    if not rows_by_rank.size:
        return None
    return _find_straggler(ranks, rows_by_rank)


def _find_straggler(ranks: tuple[Rank, ...], rows_by_rank: Ints) -> Straggler | None:
    dur = np.array([side.collectives.dur_ns[index] for side, index in zip(ranks, rows_by_rank, strict=True)])
    exposed = np.array([side.collectives.exposed_ns[index] for side, index in zip(ranks, rows_by_rank, strict=True)])
    reference = ranks[0]
    step = np.searchsorted(reference.steps.start_ns, reference.collectives.start_ns[rows_by_rank[0]], side="right")
    _, of_step = np.unique(step, return_inverse=True)
    step_count = int(of_step.max()) + 1
    if step_count < MIN_STRAGGLER_STEPS:
        return None
    waits = np.minimum(dur - dur.min(axis=0), exposed)
    per_step = _by_step(dur, of_step, step_count)  # rank x step; the last rank has the least time
    last = per_step.argmin(axis=0)
    straggler = int(np.bincount(last, minlength=len(ranks)).argmax())
    waited = _by_step(waits, of_step, step_count)
    others = np.delete(np.arange(len(ranks)), straggler)
    next_to_last = np.delete(dur, straggler, axis=0).min(axis=0)
    gain = np.minimum(np.maximum(next_to_last - dur[straggler], 0), waits[others].max(axis=0))
    return Straggler(
        ranks=ranks,
        index=straggler,
        last_frac=float((last == straggler).mean()),
        steps=step_count,
        collectives=rows_by_rank.shape[1],
        others_wait_ns=int(np.median(waited[others].mean(axis=0))),
        gain_ns=int(np.median(np.bincount(of_step, weights=gain, minlength=step_count))),
        spans=tuple(
            _waiting(side, rows, waits, rank, straggler)
            for rank, (side, rows) in enumerate(zip(ranks, rows_by_rank, strict=True))
        ),
        waits_ns=tuple(int(np.median(rank_waits)) for rank_waits in waited),
    )


def _waiting(side: Rank, rows: Ints, waits: Ints, rank: int, straggler: int) -> Spans:
    """Return the time in which this rank waits, on its own clock; for the straggler, the time before it arrives."""
    start = side.collectives.start_ns[rows]
    if rank != straggler:
        return union(start, start + waits[rank])
    return union(start - np.delete(waits, straggler, axis=0).max(axis=0), start)


def _by_step(values: Ints, of_step: Ints, step_count: int) -> Ints:
    """Return, per rank, the sum over the collectives of each step."""
    sums = np.zeros((len(values), step_count), np.int64)
    for rank, row in enumerate(values):
        np.add.at(sums[rank], of_step, row)
    return sums


def _keys(side: Rank, ranks: int) -> tuple[Ints, Ints]:
    """Return a key for each collective that all ranks must reach, equal on every rank, sorted, and its row.

    The key is the sequence number within its group if known, else the step of its launch and its position among the
    collectives of its kind in that step.
    """
    all_collectives = side.collectives
    rows = np.flatnonzero(
        all_collectives.kind_mask(*SYNCHRONISING_KINDS)
        & ((all_collectives.group_size < 0) | (all_collectives.group_size == ranks))
    )
    group = _group_numbers(all_collectives)[rows]
    if len(rows) and (all_collectives.sequence[rows] >= 0).all():
        keys = group * (1 << 40) + all_collectives.sequence[rows]
    else:
        step = _step_numbers(side)[_launch_steps(side, rows)]
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


def _launch_steps(side: Rank, rows: Ints) -> Ints:
    """Return the step of each launch, as the host may run ahead; without a launch, the step in which it starts."""
    events, all_collectives = side.run.event_rows, side.collectives
    at = all_collectives.start_ns[rows].copy()
    ids = events["correlation"][all_collectives.event[rows]]
    calls = np.flatnonzero(events.is_kind(EventKind.LAUNCH) & (events["correlation"] >= 0))
    if len(calls) and len(ids):
        calls = calls[np.argsort(events["correlation"][calls], kind="stable")]
        call_ids = events["correlation"][calls]
        index = np.minimum(np.searchsorted(call_ids, ids), len(call_ids) - 1)
        linked = call_ids[index] == ids
        at[linked] = events["start_ns"][calls[index[linked]]]
    return np.maximum(np.searchsorted(side.steps.start_ns, at, side="right") - 1, 0)


def _step_numbers(side: Rank) -> Ints:
    """Return the number of each step: the profiler's, which is equal on all ranks, else its index."""
    index = np.arange(len(side.steps))
    if side.steps.detected_by != "ProfilerStep":
        return index
    marks = side.run.event_rows.of_kind(EventKind.STEP)
    names = marks.text("name").to_list()
    matches = [_NUMBER.search(word or "") for word in names]
    if len(matches) != len(index) or not all(matches):
        return index
    numbers = np.array([int(match[1]) for match in matches if match], np.int64)
    return numbers[np.argsort(marks["start_ns"], kind="stable")] % (1 << 20)


def straggler_excess_ns(straggler: Straggler) -> dict[str, int]:
    """Return, for each ledger part but communication, the additional time on the straggler compared with the others."""
    late_ledger = straggler.ranks[straggler.index].ledger
    others = [side.ledger for side in straggler.ranks if side.ledger is not late_ledger]
    return {
        part.key: late_ledger.median_ns(part.key) - int(np.median([other.median_ns(part.key) for other in others]))
        for part in late_ledger.parts
        if part.key != "communication"
    }
