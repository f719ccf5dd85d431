"""One run, or all ranks of a job: of many, the rank that the others wait for is diagnosed, beside what the rest say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpulab.errors import RunError
from gpulab.replay.history import NO_HISTORY, History
from gpulab.rules.engine import diagnosis
from gpulab.rules.engine.finding import Diagnosis
from gpulab.rules.ranks.stragglers import awaited
from gpulab.run import Run
from gpulab.wording import number_ranges, plural

MOST_ASKED = 16  # each rank takes as long as a run alone; of more, so many are asked


def diagnose(what: Run | Sequence[Run], peers: Sequence[Run] = (), history: History = NO_HISTORY) -> Diagnosis:
    """What is worth changing in this run, first things first; never raises for what a run lacks, it says so.

    Of many runs, as `gpulab.load("folder/")` gives them, it is the diagnosis of the rank that the others wait for, or
    of the first, with the verdicts of the others beside it. `peers`: the runs of all ranks, where one of them is asked
    about: gpulab.diagnose(ranks[2], ranks). `history`: what earlier predictions on this machine taught. Raises
    RunError for what is no run.
    """
    if isinstance(what, Run):
        return diagnosis.diagnose(what, peers, history)
    ranks = _one_each(what) if isinstance(what, Sequence) else ()
    if not ranks:
        raise RunError(
            "There is nothing to diagnose.",
            why=f"this is no run, but {type(what).__name__!r}" if not isinstance(what, Sequence) else "it holds no run",
            fix='give it a run: gpulab.runs["before"], or what gpulab.load(...) gives',
        )
    if len(ranks) == 1:
        return diagnosis.diagnose(ranks[0], history=history)
    chosen = awaited(ranks) or ranks[0]
    return _beside_the_others(diagnosis.diagnose(chosen, ranks, history), ranks)


def _one_each(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The first run of each rank; all of those whose rank is not known."""
    first: dict[object, Run] = {}
    for place, run in enumerate(runs):
        if isinstance(run, Run):
            first.setdefault((run.rank,) if run.rank is not None else place, run)
    return tuple(first.values())


def _beside_the_others(found: Diagnosis, ranks: Sequence[Run]) -> Diagnosis:
    """The same with what the other ranks say, as evidence of what comes first here."""
    if found.first is None:
        return found
    others = [run for run in ranks if run is not found.run][:MOST_ASKED]
    verdicts: dict[str, list[Run]] = {}
    claims: dict[str, str] = {}
    for run in others:
        its = diagnosis.diagnose(run)
        key = its.first.rule if its.first else ""
        verdicts.setdefault(key, []).append(run)
        claims.setdefault(key, its.verdict)
    told = [f"This is {_named([found.run])}, of {len(ranks)} runs read."]
    for rule, runs in verdicts.items():
        if rule == found.first.rule:
            told.append(f"The same comes first on {_named(runs)}.")
        else:
            told.append(f"On {_named(runs)}, judged alone: {claims[rule]}")
    first = replace(found.first, evidence=(*found.first.evidence, *told))
    findings = tuple(first if each is found.first else each for each in found.findings)
    return replace(found, findings=findings)


def _named(runs: Sequence[Run]) -> str:
    known = sorted(run.rank for run in runs if run.rank is not None)
    if len(known) < len(runs):
        return ", ".join(run.name for run in runs)
    return f"{plural(len(known), 'rank')} {number_ranges(known)}"
