"""Ranks side by side: who arrives last at their collectives, and how long the others wait for it.

The same collective on all ranks ends together. Who arrives last has the shortest; what the others' last longer, they
waited. Only collectives that every rank must reach are asked: sending and receiving wait for a neighbour by design.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, TOGETHER, Collectives, collectives
from gpulab.analysis.steps.detection import Steps, steps
from gpulab.analysis.steps.ledger import Ledger, ledger
from gpulab.intervals import Ints, Spans, union
from gpulab.run import Run
from gpulab.tables import Kind

LEAST_STEPS = 3  # who is late in fewer steps may have been late by chance
_NUMBER = re.compile(r"#(\d+)")


@dataclass(frozen=True, eq=False)
class Side:
    """One rank: its run, its steps, its ledger and its collectives."""

    run: Run
    steps: Steps
    ledger: Ledger
    collectives: Collectives


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Who came last at the collectives of the steps that all ranks recorded."""

    sides: tuple[Side, ...]
    late: int  # the side that came last most often
    late_frac: float  # share of the steps in which it came last
    steps: int  # steps compared
    matched: int  # collectives compared
    wait_ns: int  # how long the others wait in a step, exposed; the mean of them, the median over steps
    by_mending_ns: int  # what of it would go if this one came with the next to last
    spans: tuple[Spans, ...]  # per side, when it waits; of the late one, when the others wait for it
    waits_ns: tuple[int, ...]  # per side, how long it waits in a step for whoever comes last


def sides(runs: Sequence[Run]) -> tuple[Side, ...]:
    """The ranks with collectives in interior steps."""
    found = []
    for run in runs:
        its_steps = steps(run)
        its_ledger = ledger(run, its_steps)
        if its_ledger is None:
            continue
        its_collectives = collectives(run, its_steps, its_ledger)
        if its_collectives is not None:
            found.append(Side(run, its_steps, its_ledger, its_collectives))
    return tuple(found)


def arrivals(runs: Sequence[Run]) -> Arrivals | None:
    """Who comes last, and what that costs; None where the ranks' collectives cannot be matched."""
    them = sides(runs)
    if len(them) < 2 or len(them) < len(runs):
        return None
    keyed = [_keys(side, len(runs)) for side in them]
    shared = keyed[0][0]
    for keys, _ in keyed[1:]:
        shared = np.intersect1d(shared, keys, assume_unique=True)
    if not len(shared):
        return None
    places = np.array([rows[np.searchsorted(keys, shared)] for keys, rows in keyed])
    inside = np.all([side.collectives.interior[place] for side, place in zip(them, places, strict=True)], axis=0)
    places = places[:, inside]
    if not places.size:
        return None
    return _compared(them, places)


def _compared(them: tuple[Side, ...], places: Ints) -> Arrivals | None:
    dur = np.array([side.collectives.dur_ns[place] for side, place in zip(them, places, strict=True)])
    bare = np.array([side.collectives.exposed_ns[place] for side, place in zip(them, places, strict=True)])
    first = them[0]
    step = np.searchsorted(first.steps.start_ns, first.collectives.start_ns[places[0]], side="right")
    _, of_step = np.unique(step, return_inverse=True)
    many = int(of_step.max()) + 1
    if many < LEAST_STEPS:
        return None
    waits = np.minimum(dur - dur.min(axis=0), bare)
    per_step = _by_step(dur, of_step, many)  # rank x step; who comes last waits least
    last = per_step.argmin(axis=0)
    late = int(np.bincount(last, minlength=len(them)).argmax())
    waited = _by_step(waits, of_step, many)
    others = np.delete(np.arange(len(them)), late)
    next_to_last = np.delete(dur, late, axis=0).min(axis=0)
    sooner = np.minimum(np.maximum(next_to_last - dur[late], 0), waits[others].max(axis=0))
    return Arrivals(
        sides=them,
        late=late,
        late_frac=float((last == late).mean()),
        steps=many,
        matched=places.shape[1],
        wait_ns=int(np.median(waited[others].mean(axis=0))),
        by_mending_ns=int(np.median(np.bincount(of_step, weights=sooner, minlength=many))),
        spans=tuple(
            _waiting(side, rows, waits, rank, late) for rank, (side, rows) in enumerate(zip(them, places, strict=True))
        ),
        waits_ns=tuple(int(np.median(mine)) for mine in waited),
    )


def _waiting(side: Side, rows: Ints, waits: Ints, rank: int, late: int) -> Spans:
    """When this rank waits, on its own timeline; of the late one, the time before it arrives."""
    start = side.collectives.start_ns[rows]
    if rank != late:
        return union(start, start + waits[rank])
    return union(start - np.delete(waits, late, axis=0).max(axis=0), start)


def _by_step(values: Ints, of_step: Ints, many: int) -> Ints:
    """Per rank, the sum over the collectives of each step."""
    sums = np.zeros((len(values), many), np.int64)
    for rank, row in enumerate(values):
        np.add.at(sums[rank], of_step, row)
    return sums


def _keys(side: Side, ranks: int) -> tuple[Ints, Ints]:
    """A number for each collective that all ranks must reach, the same on every rank; sorted, with its row.

    By the sequence number of its group where that is told; else by the step that holds its launch, and by which of
    its kind it is there.
    """
    every = side.collectives
    rows = np.flatnonzero(every.is_kind(*TOGETHER) & ((every.group_size < 0) | (every.group_size == ranks)))
    group = _group_numbers(every)[rows]
    if len(rows) and (every.sequence[rows] >= 0).all():
        keys = group * (1 << 40) + every.sequence[rows]
    else:
        step = _step_numbers(side)[_launch_steps(side, rows)]
        family = (step * len(KINDS) + every.kind[rows]) * (1 << 10) + group % (1 << 10)
        keys = family * (1 << 20) + _occurrence(family)
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    # What is not unique tells nothing.
    alone = np.ones(len(keys), bool)
    same = np.flatnonzero(keys[1:] == keys[:-1])
    alone[same] = alone[same + 1] = False
    return keys[alone], rows[alone]


def _group_numbers(every: Collectives) -> Ints:
    """A number for each collective's group that is the same on every rank: of its name, not of its place."""
    numbers = [crc32(name.encode()) % (1 << 20) for name in every.groups]
    return np.array([*numbers, 0], np.int64)[every.group]


def _occurrence(family: Ints) -> Ints:
    """Which of its family each is, in the order given."""
    order = np.argsort(family, kind="stable")
    opens = np.append(True, family[order][1:] != family[order][:-1])
    place = np.arange(len(family))
    counted = np.empty(len(family), np.int64)
    counted[order] = place - np.maximum.accumulate(np.where(opens, place, 0))
    return counted


def _launch_steps(side: Side, rows: Ints) -> Ints:
    """The step in which each was called, as the host may run ahead; where no call is told, the one it begins in."""
    events, every = side.run.event_rows, side.collectives
    at = every.start_ns[rows].copy()
    mine = events["correlation"][every.event[rows]]
    calls = np.flatnonzero((events["kind"] == Kind.LAUNCH) & (events["correlation"] >= 0))
    if len(calls) and len(mine):
        calls = calls[np.argsort(events["correlation"][calls], kind="stable")]
        known = events["correlation"][calls]
        found = np.minimum(np.searchsorted(known, mine), len(known) - 1)
        hit = known[found] == mine
        at[hit] = events["start_ns"][calls[found[hit]]]
    return np.maximum(np.searchsorted(side.steps.start_ns, at, side="right") - 1, 0)


def _step_numbers(side: Side) -> Ints:
    """The number of each step: as the profiler counted it, which all ranks do alike; else its place."""
    place = np.arange(len(side.steps))
    if side.steps.found_by != "ProfilerStep":
        return place
    marks = side.run.event_rows.of_kind(Kind.STEP)
    words = marks.words("name").to_list()
    told = [_NUMBER.search(word or "") for word in words]
    if len(told) != len(place) or not all(told):
        return place
    numbers = np.array([int(found[1]) for found in told if found], np.int64)
    return numbers[np.argsort(marks["start_ns"], kind="stable")] % (1 << 20)


def excess(arrived: Arrivals) -> dict[str, int]:
    """For each part of the ledger but communication, how much longer it takes on the late rank than on the others."""
    late = arrived.sides[arrived.late].ledger
    others = [side.ledger for side in arrived.sides if side.ledger is not late]
    return {
        part.key: late.median_ns(part.key) - int(np.median([other.median_ns(part.key) for other in others]))
        for part in late.parts
        if part.key != "communication"
    }
