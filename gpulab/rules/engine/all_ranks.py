"""Diagnose one run, or all ranks of a job: of several runs, diagnose the straggler and quote the other ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpulab.errors import RunError
from gpulab.replay.history import NO_HISTORY, History
from gpulab.rules.engine import diagnosis
from gpulab.rules.engine.finding import Diagnosis
from gpulab.rules.ranks.stragglers import straggler_run
from gpulab.run import Run
from gpulab.wording import number_ranges, plural

_MAX_OTHER_RANKS = 16  # diagnosing a rank takes as long as diagnosing a run; further ranks are left out


def diagnose(runs: Run | Sequence[Run], peers: Sequence[Run] = (), history: History = NO_HISTORY) -> Diagnosis:
    """Return the ranked findings for a run. Never raises for missing data: rules without their inputs are not judged.

    For a sequence of runs, as `gpulab.load("folder/")` returns, this diagnoses the straggler, or the first run if there
    is none, and quotes the verdicts of the other ranks. `peers`: the runs of all ranks when `runs` is one of them:
    gpulab.diagnose(ranks[2], ranks). `history`: predictions that were measured earlier on this machine. Raises RunError
    if `runs` is not a run.
    """
    if isinstance(runs, Run):
        return diagnosis.diagnose(runs, peers, history)
    ranks = _one_run_per_rank(runs) if isinstance(runs, Sequence) else ()
    if not ranks:
        raise RunError(
            "There is no run to diagnose.",
            why=f"expected a Run, got {type(runs).__name__!r}"
            if not isinstance(runs, Sequence)
            else "the sequence holds no Run",
            fix='pass a run: gpulab.runs["before"] or gpulab.load(...)',
        )
    if len(ranks) == 1:
        return diagnosis.diagnose(ranks[0], history=history)
    rank = straggler_run(ranks) or ranks[0]
    return _with_other_ranks(diagnosis.diagnose(rank, ranks, history), ranks)


def _one_run_per_rank(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Return the first run of each rank, and every run whose rank is unknown."""
    first: dict[object, Run] = {}
    for index, run in enumerate(runs):
        if isinstance(run, Run):
            first.setdefault((run.rank,) if run.rank is not None else index, run)
    return tuple(first.values())


def _with_other_ranks(diagnosis_of_rank: Diagnosis, ranks: Sequence[Run]) -> Diagnosis:
    """Return the diagnosis with the verdicts of the other ranks added to the evidence of its first finding."""
    if diagnosis_of_rank.first is None:
        return diagnosis_of_rank
    others = [run for run in ranks if run is not diagnosis_of_rank.run][:_MAX_OTHER_RANKS]
    verdicts: dict[str, list[Run]] = {}
    claims: dict[str, str] = {}
    for run in others:
        other = diagnosis.diagnose(run)
        key = other.first.rule if other.first else ""
        verdicts.setdefault(key, []).append(run)
        claims.setdefault(key, other.verdict)
    evidence = [f"This is {_rank_names([diagnosis_of_rank.run])}, one of {len(ranks)} runs that were read."]
    for rule, runs in verdicts.items():
        if rule == diagnosis_of_rank.first.rule:
            evidence.append(f"The same finding comes first on {_rank_names(runs)}.")
        else:
            evidence.append(f"On {_rank_names(runs)}, diagnosed separately: {claims[rule]}")
    first = replace(diagnosis_of_rank.first, evidence=(*diagnosis_of_rank.first.evidence, *evidence))
    findings = tuple(first if finding is diagnosis_of_rank.first else finding for finding in diagnosis_of_rank.findings)
    return replace(diagnosis_of_rank, findings=findings)


def _rank_names(runs: Sequence[Run]) -> str:
    ranks = sorted(run.rank for run in runs if run.rank is not None)
    if len(ranks) < len(runs):
        return ", ".join(run.name for run in runs)
    return f"{plural(len(ranks), 'rank')} {number_ranges(ranks)}"
