"""A rule about the ranks of a job side by side: one that all the others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.stragglers import Arrivals, arrivals, excess
from gpulab.analysis.steps.ledger import main_device
from gpulab.replay.worker_queue import REALISED_FRAC
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, Unjudged, figures
from gpulab.run import Run
from gpulab.wording import duration, percent, quantity

WAIT_WORTH_FRAC = 0.05
LATE_FRAC = 0.6  # the same rank last in more steps than this; of ranks that jitter none is last so often
EXPLAINS_FRAC = 0.3  # a part of the step that is longer by this much of the wait is why
SLOWER_FRAC = 0.95  # a clock under this share of the others' is slower; boost clocks of equal cards differ by 1-2 %


def straggler(evidence: Evidence) -> Finding | Unjudged | None:
    """One rank comes last at the collectives, and all the others wait for it.

    Proof: the same collective is shortest on the rank that comes last, and longer on the others by what they wait; the
    same rank is last in most steps. Confused with: slow communication, which is equally long everywhere; ranks that
    take turns in being late, as uneven batches make them; pipelines, whose stages wait for one another by design and
    are not compared. What to do: what that rank's own diagnosis says: mend its loader, its throttling, its share of
    the work.
    """
    arrived = evidence.arrivals
    if arrived is None:
        return _not_comparable(evidence)
    step_ns = evidence.steps.traced_ns or 1
    if not _worth(arrived, step_ns):
        return None
    cause = _cause(evidence, arrived)
    name = _rank(arrived)
    others = len(arrived.sides) - 1
    return Finding(
        parts=cause.parts if arrived.sides[arrived.late].run is evidence.run else ("communication",),
        claim=f"{'The other GPU waits' if others == 1 else f'The other {others} GPUs wait'} "
        f"{duration(arrived.wait_ns)} of each {duration(step_ns)} step for that of rank {name}{cause.clause}.",
        evidence=(
            f"Rank {name} comes last in {percent(arrived.late_frac)} of the {arrived.steps} steps compared "
            f"({arrived.matched} collectives, matched across {others + 1} ranks).",
            *cause.evidence,
        ),
        numbers=figures(
            rank=name, late_frac=arrived.late_frac, exposed_ns=arrived.wait_ns, exposed_frac=arrived.wait_ns / step_ns
        ),
        fix=cause.fix,
        advice=cause.advice,
        gain=_mended(evidence, arrived),
        confidence=CERTAIN if arrived.late_frac >= 0.9 else LIKELY,
        shown_by=next(
            (spans for side, spans in zip(arrived.sides, arrived.spans, strict=True) if side.run is evidence.run),
            evidence.ledger.spans["communication"],
        ),
        # On the rank that is late, what it is late for is told with that.
        explains=cause.told if arrived.sides[arrived.late].run is evidence.run else (),
    )


def _mended(evidence: Evidence, arrived: Arrivals) -> Gain:
    """One rank that is mended comes with the next to last at best; the floor is that all arrive together."""
    mended = min(1.0, arrived.by_mending_ns / arrived.wait_ns)
    return evidence.bounded(
        evidence.plain_ns(arrived.wait_ns),
        "the wait for this rank, less that for the next to last, removed by 70 to 100 %",
        "even ranks that arrive together",
        (REALISED_FRAC * mended, mended),
    )


def awaited(ranks: Sequence[Run]) -> Run | None:
    """The rank that the others wait for, as `straggler` has it; None where there is none."""
    arrived = arrivals(ranks)
    if arrived is None:
        return None
    late = arrived.sides[arrived.late]
    return late.run if _worth(arrived, late.steps.traced_ns or 1) else None


def _worth(arrived: Arrivals, step_ns: int) -> bool:
    return arrived.wait_ns >= WAIT_WORTH_FRAC * step_ns and arrived.late_frac >= LATE_FRAC


def _not_comparable(evidence: Evidence) -> Unjudged | None:
    if not evidence.ledger.part_ns["communication"].any():
        return None  # these runs are not parts of one job, or do not communicate: nobody waits
    return Unjudged(
        why="the collectives of the ranks cannot be matched: no three steps were recorded by all of them",
        fix="record the same steps on every rank: torch.profiler.schedule(wait=5, warmup=2, active=6)",
    )


@dataclass(frozen=True)
class _Cause:
    """Why a rank is late, as far as the ranks' ledgers side by side tell."""

    parts: tuple[str, ...]  # of that rank's ledger
    clause: str
    evidence: tuple[str, ...]
    fix: str
    advice: str
    told: tuple[str, ...] = ()  # the rule whose finding about that rank is part of the evidence


_WHY = {
    "loader": ", whose data comes late",
    "python": ", whose Python code takes longer",
    "glue": ", whose Python process is slower at calling operators",
    "dispatch": ", whose Python process is slower at calling operators",
    "launch": ", whose Python process is slower at calling operators",
    "runtime": ", whose Python process is slower at calling operators",
    "copies": ", whose copies take longer",
    "copy_call": ", whose copies take longer",
    "sync": ", which waits for its GPU more often",
    "alloc": ", which asks the driver for memory",
}
_COMPUTES = ("matmul", "kernels")


def _cause(evidence: Evidence, arrived: Arrivals) -> _Cause:
    """What takes longer there, and what that rank's own diagnosis makes of it."""
    late = arrived.sides[arrived.late]
    longer = excess(arrived)
    longer["compute"] = sum(longer.pop(key) for key in _COMPUTES)
    key, more_ns = max(longer.items(), key=lambda each: each[1])
    if more_ns < EXPLAINS_FRAC * arrived.wait_ns:
        return _Cause((), "", (), "", f"Compare rank {_rank(arrived)} with another one: gpulab.report(ranks[...]).")
    keys = _COMPUTES if key == "compute" else (key,)
    there, elsewhere = late.ledger.median_ns(*keys), _elsewhere(arrived, keys)
    label = "compute" if key == "compute" else late.ledger.label(key)
    evidence = [
        f"There {label} takes {duration(there)} of a step, "
        f"on the others {duration(elsewhere) if elsewhere else 'nothing'}."
    ]
    clause, advice = _why(arrived, key)
    evidence += _clocks_told(arrived) if key == "compute" else []
    own = evidence.diagnose_alone(late.run).first if evidence.diagnose_alone else None
    if own is None or not (set(own.parts) & set(keys) or (key == "compute" and own.rule == "clock_throttling")):
        return _Cause(keys, clause, tuple(evidence), "", advice)
    evidence.append(f"Its own diagnosis: {own.claim}")
    fix = f"# on rank {_rank(arrived)}:\n{own.fix}" if own.fix else ""
    return _Cause(keys, clause, tuple(evidence), fix, own.advice or advice, (own.rule,))


def _elsewhere(arrived: Arrivals, keys: tuple[str, ...]) -> int:
    late = arrived.sides[arrived.late]
    return int(np.median([side.ledger.median_ns(*keys) for side in arrived.sides if side is not late]))


def _why(arrived: Arrivals, key: str) -> tuple[str, str]:
    """The clause of the claim, and what to do where that rank's own diagnosis has no better words."""
    name = _rank(arrived)
    if key != "compute":
        return _WHY[key], f"Mend that on rank {name}: gpulab.report of its run alone says more."
    clock, others = _clocks(arrived)
    if clock is not None and others is not None and clock < SLOWER_FRAC * others:
        return ", whose GPU runs at a lower clock", (
            f"Look at the cooling, the power limit and the other work of the GPU of rank {name}; where it cannot be "
            "mended, leave that machine out."
        )
    return ", whose GPU takes longer for its kernels", (
        "Give every rank as much work: batches of equal length (sort samples by length, or count tokens instead of "
        "samples). Where all have the same work, that GPU is slower: look at its clocks and at who shares it."
    )


def _clocks_told(arrived: Arrivals) -> list[str]:
    clock, others = _clocks(arrived)
    if clock is None or others is None:
        return []
    return [f"Its GPU's clock is {quantity(clock, 'MHz')}, the others' {quantity(others, 'MHz')} (medians)."]


def _clocks(arrived: Arrivals) -> tuple[float | None, float | None]:
    """The median clock of the late rank's GPU, and of the others'; None where not read."""
    told = [_clock(side.run) for side in arrived.sides]
    others = [clock for place, clock in enumerate(told) if place != arrived.late and clock is not None]
    return told[arrived.late], float(np.median(others)) if others else None


def _clock(run: Run) -> float | None:
    samples = run.gpu_rows
    clocks = samples["sm_clock_mhz"][(samples["device"] == main_device(run)) & (samples["util_frac"] > 0)]
    clocks = clocks[~np.isnan(clocks)]
    return float(np.median(clocks)) if len(clocks) else None


def _rank(arrived: Arrivals) -> int:
    told = arrived.sides[arrived.late].run.rank
    return arrived.late if told is None else told
