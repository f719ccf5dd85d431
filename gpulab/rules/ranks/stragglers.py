"""A rule about stragglers: one rank that all others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gpulab.analysis.ranks.stragglers import Straggler, find_straggler, straggler_excess_ns
from gpulab.analysis.steps.ledger import main_device
from gpulab.replay.job.job_catalogue import JOB_REWRITES_BY_NAME
from gpulab.replay.job.job_prediction import JobChange
from gpulab.replay.worker_count_model import REALISED_FRAC
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, Unjudged, known_numbers
from gpulab.rules.ranks.job_gain import replayed_gain
from gpulab.run import Run
from gpulab.wording import count, duration, percent, quantity

_MIN_WAIT_FRAC = 0.05
_MIN_LATE_FRAC = 0.6  # of the steps in which the same rank is last
_MIN_EXPLAINED_FRAC = 0.3  # of the wait: a part of the step that is longer by this much is the reason
_SLOWER_CLOCK_FRAC = 0.95  # of the others' clock; boost clocks of equal GPUs differ by 1-2 %


def straggler(evidence: Evidence) -> Finding | Unjudged | None:
    """One rank is a straggler: it arrives last at the collectives, and all other ranks wait for it.

    Proof: the same collective is shortest on the rank that arrives last, and longer on the others by their wait; the
    same rank is last in most steps, and more often or later than equal ranks are by chance.

    Confused with: slow communication, which is equally long on all ranks; ranks that are late alternately, as with
    uneven batches; pipeline parallelism, whose stages wait for each other by design and are not compared.

    What to do: follow that rank's own diagnosis: fix its data loading, its throttling, or its share of the work.
    """
    timing = evidence.arrivals
    if timing is None:
        return _not_comparable(evidence)
    step_ns = evidence.steps.traced_ns or 1
    if not is_straggler(timing.others_wait_ns, timing, step_ns):
        return None
    cause = _cause(evidence, timing)
    rank = _rank(timing)
    others = len(timing.ranks) - 1
    return Finding(
        ledger_parts=cause.parts if timing.ranks[timing.index].run is evidence.run else ("communication",),
        claim=f"Rank {rank} is a straggler{cause.clause}: "
        f"{_others_wait(evidence, others)} "
        f"{duration(timing.others_wait_ns)} of each {duration(step_ns)} step for it.",
        evidence=(
            f"Rank {rank} arrives last in {percent(timing.last_frac)} of the {timing.steps} steps compared "
            f"({count(timing.collectives, 'collective')}, matched across {others + 1} ranks).",
            *cause.evidence,
        ),
        numbers=known_numbers(
            rank=rank,
            late_frac=timing.last_frac,
            exposed_ns=timing.others_wait_ns,
            exposed_frac=timing.others_wait_ns / step_ns,
        ),
        fix=cause.fix,
        advice=cause.advice,
        gain=_gain(evidence, timing),
        confidence=CERTAIN if timing.last_frac >= 0.9 else LIKELY,
        spans=next(
            (spans for side, spans in zip(timing.ranks, timing.spans, strict=True) if side.run is evidence.run),
            evidence.ledger.spans["communication"],
        ),
        # On the straggler itself, the finding about its cause is part of this evidence.
        explains=cause.rules if timing.ranks[timing.index].run is evidence.run else (),
    )


def _others_wait(evidence: Evidence, others: int) -> str:
    noun = "GPU" if evidence.on_gpu else "rank"
    return f"the other {noun} waits" if others == 1 else f"{others} {noun}s wait"


def _gain(evidence: Evidence, timing: Straggler) -> Gain:
    """Return the gain of fixing this rank: at best the next slowest then arrives last. The floor: no rank waits."""
    replayed = replayed_gain(
        [side.run for side in timing.ranks],
        JobChange(JOB_REWRITES_BY_NAME["no_straggler"], _rank(timing)),
        "a replay of all ranks together, in which no rank waits for this one",
    )
    if replayed is not None:
        return replayed
    removable_frac = min(1.0, timing.gain_ns / timing.others_wait_ns)
    return evidence.gain_of_removing(
        evidence.unprofiled_ns(timing.others_wait_ns),
        "removing 70 to 100 % of the wait for this rank beyond the wait for the next slowest",
        "ranks that all arrive together",
        (REALISED_FRAC * removable_frac, removable_frac),
    )


def straggler_run(ranks: Sequence[Run]) -> Run | None:
    """Return the straggler among these ranks, as the rule `straggler` finds it; None if there is none."""
    timing = find_straggler(ranks)
    if timing is None:
        return None
    slowest = timing.ranks[timing.index]
    step_ns = slowest.steps.traced_ns or 1
    return slowest.run if is_straggler(timing.others_wait_ns, timing, step_ns) else None


class _Lateness(Protocol):
    """How often the rank that is last most often is last, and whether that may be chance."""

    @property
    def last_frac(self) -> float: ...

    @property
    def is_persistent(self) -> bool: ...


def is_straggler(others_wait_ns: float, latest: _Lateness, step_ns: int) -> bool:
    """Whether the latest rank, for which the others wait so long, is a straggler: in most steps, and not by chance."""
    return is_long_wait(others_wait_ns, step_ns) and latest.last_frac >= _MIN_LATE_FRAC and latest.is_persistent


def is_long_wait(wait_ns: float, step_ns: int) -> bool:
    """Whether a wait per step is long enough to report: 5 % of the step."""
    return wait_ns >= _MIN_WAIT_FRAC * step_ns


def _not_comparable(evidence: Evidence) -> Unjudged | None:
    if not evidence.ledger.part_ns["communication"].any():
        return None  # these runs are separate jobs or do not communicate, so no rank waits
    return Unjudged(
        reason="the collectives of the ranks cannot be matched: no three steps were recorded by all of them",
        fix="record the same steps on every rank: torch.profiler.schedule(wait=5, warmup=2, active=6)",
    )


@dataclass(frozen=True)
class _Cause:
    """Why a rank is late, by comparing the ledgers of the ranks."""

    parts: tuple[str, ...]  # of that rank's ledger
    clause: str
    evidence: tuple[str, ...]
    fix: str
    advice: str
    rules: tuple[str, ...] = ()  # the rules whose findings about that rank are part of the evidence


_CLAUSES = {
    "loader": " that waits for data",
    "python": " with slower Python code",
    "glue": " with slower operator dispatch",
    "dispatch": " with slower operator dispatch",
    "launch": " with slower operator dispatch",
    "runtime": " with slower operator dispatch",
    "copies": " with slower copies",
    "copy_call": " with slower copies",
    "sync": " with more synchronisation",
    "alloc": " that calls cudaMalloc",
}
_LOWER_CLOCK, _LONGER_KERNELS = " with a lower GPU clock", " with longer kernel times"
_LONGER_OPERATORS = " with longer compute times"
_COMPUTES = ("matmul", "kernels", "compute")


def _cause(evidence: Evidence, timing: Straggler) -> _Cause:
    """Return which part of the step is longer on the straggler, and its own diagnosis."""
    slowest = timing.ranks[timing.index]
    late = late_part(straggler_excess_ns(timing), timing.others_wait_ns)
    if late is None:
        return _Cause(
            (), "", (), "", f"Compare the report of rank {_rank(timing)} with another one: gpulab.report(ranks[...])."
        )
    key, keys = late
    late_ns, others_ns = slowest.ledger.median_ns(*keys), _median_of_others(timing, keys)
    label = "compute" if key == "compute" else slowest.ledger.label(key)
    sentences = [
        f"On rank {_rank(timing)}, {label} takes {duration(late_ns)} per step, "
        f"on the others {duration(others_ns) if others_ns else 'none'}."
    ]
    clause, advice = _clause_and_advice(timing, key)
    sentences += _clock_evidence(timing) if key == "compute" else []
    finding = evidence.diagnose_alone(slowest.run).first if evidence.diagnose_alone else None
    if finding is None or not (
        set(finding.ledger_parts) & set(keys) or (key == "compute" and finding.rule == "clock_throttling")
    ):
        return _Cause(keys, clause, tuple(sentences), "", advice)
    sentences.append(f"Diagnosis of that rank: {finding.claim}")
    fix = f"# on rank {_rank(timing)}:\n{finding.fix}" if finding.fix else ""
    return _Cause(keys, clause, tuple(sentences), fix, finding.advice or advice, (finding.rule,))


def late_part(excess_ns: Mapping[str, int], others_wait_ns: float) -> tuple[str, tuple[str, ...]] | None:
    """Return the part of the straggler's step that explains the wait, "compute" for its kernels, and its ledger keys.

    `excess_ns`: how much longer each ledger part is on the straggler. None if no part explains 30 % of the wait.
    """
    longer = {key: more_ns for key, more_ns in excess_ns.items() if key not in _COMPUTES}
    longer["compute"] = sum(excess_ns.get(key, 0) for key in _COMPUTES)
    key, more_ns = max(longer.items(), key=lambda item: item[1])
    if more_ns < _MIN_EXPLAINED_FRAC * others_wait_ns:
        return None
    return key, tuple(part for part in _COMPUTES if part in excess_ns) if key == "compute" else (key,)


def cause_clause(part: str, clock_mhz: float | None, others_clock_mhz: float | None, *, on_gpu: bool = True) -> str:
    """Return the clause of a claim for a part that `late_part` returned: "waits for data", "a lower GPU clock".

    The clocks are medians of the straggler's GPU and of the other ranks' GPUs; None: not recorded.
    """
    if part != "compute":
        return _CLAUSES.get(part, "")
    if not on_gpu:
        return _LONGER_OPERATORS
    return _LOWER_CLOCK if _is_slower_clock(clock_mhz, others_clock_mhz) else _LONGER_KERNELS


def _is_slower_clock(clock_mhz: float | None, others_clock_mhz: float | None) -> bool:
    return clock_mhz is not None and others_clock_mhz is not None and clock_mhz < _SLOWER_CLOCK_FRAC * others_clock_mhz


def _median_of_others(timing: Straggler, keys: tuple[str, ...]) -> int:
    slowest = timing.ranks[timing.index]
    return int(np.median([side.ledger.median_ns(*keys) for side in timing.ranks if side is not slowest]))


def _clause_and_advice(timing: Straggler, key: str) -> tuple[str, str]:
    """Return the clause of the claim, and advice in case the rank's own diagnosis has none."""
    rank = _rank(timing)
    if key != "compute":
        return cause_clause(key, None, None), f"Fix that on rank {rank}; gpulab.report() of its run shows more."
    on_gpu = timing.ranks[timing.index].ledger.device == "gpu"
    clause = cause_clause(key, *_clocks(timing), on_gpu=on_gpu)
    if clause == _LOWER_CLOCK:
        return clause, (
            f"Check the cooling, the power limit and other processes on the GPU of rank {rank}; if it cannot be fixed, "
            "exclude that machine."
        )
    slower = (
        "that GPU is slower: check its clocks and other processes on it."
        if on_gpu
        else "that rank has slower or fewer cores: check its threads and what else runs on its machine."
    )
    return clause, (
        "Give every rank the same amount of work: batches of equal length (sort samples by length, or count tokens "
        f"instead of samples). If the work is equal, {slower}"
    )


def _clock_evidence(timing: Straggler) -> list[str]:
    clock, others = _clocks(timing)
    if clock is None or others is None:
        return []
    return [f"Its GPU clock is {quantity(clock, 'MHz')}, that of the others {quantity(others, 'MHz')} (medians)."]


def _clocks(timing: Straggler) -> tuple[float | None, float | None]:
    """Return the median clock of the straggler's GPU and of the others; None if unknown."""
    clocks = [median_clock_mhz(side.run) for side in timing.ranks]
    others = [clock for index, clock in enumerate(clocks) if index != timing.index and clock is not None]
    return clocks[timing.index], float(np.median(others)) if others else None


def median_clock_mhz(run: Run) -> float | None:
    """Return the median clock of the busiest GPU while it worked; None if it was not recorded."""
    samples = run.gpu_rows
    clocks = samples["sm_clock_mhz"][(samples["device"] == main_device(run)) & (samples["util_frac"] > 0)]
    clocks = clocks[~np.isnan(clocks)]
    return float(np.median(clocks)) if len(clocks) else None


def _rank(timing: Straggler) -> int:
    rank = timing.ranks[timing.index].run.rank
    return timing.index if rank is None else rank
