"""A rule about ranks that take turns in being last, because the amount of work differs from step to step."""

from __future__ import annotations

from gpulab.analysis.ranks.unequal_work import UnequalWork, unequal_work
from gpulab.analysis.ranks.waits import waits_of
from gpulab.replay.job.job_catalogue import JOB_REWRITES_BY_NAME
from gpulab.replay.job.job_prediction import JobChange
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.rules.ranks.job_gain import replayed_gain
from gpulab.rules.ranks.stragglers import is_long_wait, is_straggler
from gpulab.wording import duration, number, percent

_MIN_STEPS = 4
_MIN_CORRELATION = 0.8  # of compute and arrival; delays of another cause have about none
_MIN_SPREAD_FRAC = 0.5  # of the mean wait: the difference in compute must be able to cause it
# Of the compute. The same work takes unequal time on CPU cores that ranks share: of equal ranks, the spread was 18 %.
_MIN_SPREAD_OF_WORK = {"gpu": 0.0, "cpu": 0.3}


def uneven_batches(evidence: Evidence) -> Finding | None:
    """Ranks take turns in being last, because their batches need different amounts of work.

    Proof: the ranks wait at collectives for the last one, which is another rank from step to step; in each step the
    ranks that compute more than the mean arrive later than the mean.

    Confused with: a straggler, which is the same rank in most steps; delays by data loading, garbage collection or
    other programs, which do not lengthen the compute; noise, which makes no rank wait for long; CPU cores that ranks
    share, on which equal work takes unequal time.

    What to do: give all ranks the same amount of work in each step: batches with a fixed number of tokens, or samples
    of similar length in the same step on all ranks.
    """
    work = _work(evidence)
    step_ns = evidence.steps.traced_ns or 1
    if work is None or not _is_uneven(work, step_ns, evidence.ledger.device):
        return None
    return Finding(
        ledger_parts=("communication",),
        claim=f"The ranks have unequal work: they wait {duration(work.mean_wait_ns)} of each {duration(step_ns)} step "
        "for the one with the longest batch.",
        evidence=(
            f"{work.distinct_last} of {len(work.work_ns)} ranks are last in turn; none is last in more than "
            f"{percent(work.last_frac)} of the {work.steps} steps compared.",
            f"In a step, the busiest rank computes {duration(work.spread_ns)} more than the least busy one (median). "
            f"Ranks that compute more arrive later: the correlation is {number(work.correlation, 2)}.",
        ),
        numbers=known_numbers(
            exposed_ns=round(work.mean_wait_ns),
            exposed_frac=work.mean_wait_ns / step_ns,
            correlation=work.correlation,
            spread_ns=work.spread_ns,
        ),
        advice="Give all ranks the same amount of work in each step: batches with a fixed number of tokens instead of "
        "samples, or samples sorted by length into groups, from which all ranks draw in the same step. Gradient "
        "accumulation over several batches averages the differences.",
        gain=_gain(evidence, work),
        confidence=LIKELY,
        spans=evidence.ledger.spans["communication"],
    )


def _work(evidence: Evidence) -> UnequalWork | None:
    matched = evidence.matched_collectives
    waits = None if matched is None else waits_of(matched)
    return None if waits is None else unequal_work(waits)


def _is_uneven(work: UnequalWork, step_ns: int, device: str) -> bool:
    ranks = len(work.work_ns)
    others_wait_ns = work.mean_wait_ns * ranks / (ranks - 1)
    return (
        work.steps >= _MIN_STEPS
        and is_long_wait(work.mean_wait_ns, step_ns)
        and not is_straggler(others_wait_ns, work, step_ns)
        and work.correlation >= _MIN_CORRELATION
        and work.spread_ns >= _MIN_SPREAD_FRAC * work.mean_wait_ns
        and work.spread_ns >= _MIN_SPREAD_OF_WORK[device] * float(work.work_ns.mean())
    )


def _gain(evidence: Evidence, work: UnequalWork) -> Gain:
    """Return the gain of equal work: all ranks then arrive at the mean of their arrivals."""
    runs = evidence.peers
    replayed = replayed_gain(
        runs,
        JobChange(JOB_REWRITES_BY_NAME["balance"], True),
        "a replay of all ranks together, in which all have the same amount of work",
    )
    if replayed is not None:
        return replayed
    return evidence.gain_of_removing(
        evidence.unprofiled_ns(work.mean_wait_ns),
        "removing 50 to 100 % of the mean wait, as the work of the busiest rank is spread over all",
        "ranks that all arrive together",
        (0.5, 1.0),
    )
