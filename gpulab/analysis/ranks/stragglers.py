"""Stragglers: find the rank that arrives last at the collectives, and how long the other ranks wait for it.

Only collectives that every rank must reach are compared: send and receive wait by design. The module `arrivals` matches
them and computes the waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.arrivals import ArrivalOrder, RankArrivals, compare_arrivals, rank_arrivals
from gpulab.analysis.ranks.collectives import Collectives, collectives
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.intervals import Spans, union
from gpulab.run import Run


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
    is_persistent: bool  # not by chance
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
    order = compare_arrivals([_arrivals(side, len(runs)) for side in ranks])
    if order is None:
        return None
    return Straggler(
        ranks=ranks,
        index=order.index,
        last_frac=order.last_frac,
        is_persistent=order.is_persistent,
        steps=order.steps,
        collectives=order.rows.shape[1],
        others_wait_ns=order.others_wait_ns,
        gain_ns=order.gain_ns,
        spans=tuple(_waiting(side, order, rank) for rank, side in enumerate(ranks)),
        waits_ns=order.rank_waits_ns,
    )


def _arrivals(side: Rank, ranks: int) -> RankArrivals:
    """Return the arrivals at the collectives of all ranks."""
    sizes = side.collectives.group_size
    return rank_arrivals(side.run, side.steps, side.collectives, (sizes < 0) | (sizes == ranks))


def _waiting(side: Rank, order: ArrivalOrder, rank: int) -> Spans:
    """Return the time in which this rank waits, on its own clock; for the straggler, the time before it arrives."""
    start = side.collectives.start_ns[order.rows[rank]]
    if rank != order.index:
        return union(start, start + order.waits_ns[rank])
    return union(start - np.delete(order.waits_ns, order.index, axis=0).max(axis=0), start)


def straggler_excess_ns(straggler: Straggler) -> dict[str, int]:
    """Return, for each ledger part but communication, the additional time on the straggler compared with the others."""
    medians = [{part.key: side.ledger.median_ns(part.key) for part in side.ledger.parts} for side in straggler.ranks]
    return excess_part_ns(medians[straggler.index], [*medians[: straggler.index], *medians[straggler.index + 1 :]])


def excess_part_ns(late_part_ns: Mapping[str, int], others: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return, for each ledger part but communication, how much longer it is than the median over the other ranks.

    All times are ns per step. A part that another rank lacks, because it has no GPU, counts as 0 there.
    """
    return {
        key: late_ns - int(np.median([part_ns.get(key, 0) for part_ns in others]))
        for key, late_ns in late_part_ns.items()
        if key != "communication"
    }
