"""One side of a comparison: a run, the ranks of a job, or several runs of the same program."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from gpulab.analysis.host.other_programs import cores_used_by_others, undisturbed_steps
from gpulab.analysis.kernels.matching import Recorded
from gpulab.analysis.steps.detection import Mask, burst_means
from gpulab.analysis.steps.ledger import Ledger
from gpulab.analysis.steps.marked_steps import completed_steps
from gpulab.comparison.interval import Statistic, steadiest_statistic
from gpulab.errors import RunError
from gpulab.files.ranks import Ranks
from gpulab.intervals import Ints
from gpulab.rules import Diagnosis, Finding, diagnose
from gpulab.run import KILLED, Run
from gpulab.wording import clean

_COMPLETE_OUTCOMES = ("ok", "KeyboardInterrupt", "SystemExit")  # a user who stops a loop has seen enough of it
MIN_UNDISTURBED_STEPS = 20  # with fewer undisturbed steps or bursts, the median is not reliable

Runs = Run | Sequence[Run]  # the input for one side


@dataclass(frozen=True)
class Basis:
    """The kind of steps compared, the same on every side, and their statistic."""

    profiled: bool  # compare recorded steps, which include profiler overhead; else unprofiled steps
    statistic: Statistic  # the statistic that represents the steps of a run
    undisturbed: bool = False  # use only steps undisturbed by other programs, and only runs with enough of them


@dataclass(frozen=True, eq=False)
class ComparedSide:
    """One side: its name and the diagnoses of its runs."""

    name: str
    runs: tuple[Diagnosis, ...]

    @cached_property
    def typical(self) -> Diagnosis:
        """The run with the median step time, which represents the side."""
        timed = sorted((each for each in self.runs if each.steps.step_ns), key=lambda each: each.steps.step_ns or 0)
        return timed[(len(timed) - 1) // 2] if timed else self.runs[0]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings of at least half of the runs, from the typical run if it has them."""
        findings = [finding for each in (self.typical, *self.runs) for finding in each.findings]
        runs_with_rule = {
            rule: sum(rule in _rules(each) for each in self.runs) for rule in {finding.rule for finding in findings}
        }
        by_rule: dict[str, Finding] = {}
        for finding in findings:
            if 2 * runs_with_rule[finding.rule] >= len(self.runs):
                by_rule.setdefault(finding.rule, finding)
        return tuple(by_rule.values())

    @property
    def crashes(self) -> tuple[Diagnosis, ...]:
        """The runs that an error ended, or whose process was killed."""
        return tuple(each for each in self.runs if each.run.outcome not in _COMPLETE_OUTCOMES)

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """The runs that have a ledger."""
        return tuple((each.run, each.steps, each.ledger) for each in self.runs if each.ledger is not None)

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """The ledgers of the runs that have one."""
        return tuple(ledger for _, _, ledger in self.recorded)

    def compared_runs(self, basis: Basis) -> tuple[Diagnosis, ...]:
        """Return the runs to compare: all, or those with enough undisturbed steps."""
        if not basis.undisturbed:
            return self.runs
        return tuple(each for each in self.runs if _calm_enough(each, basis))

    def steps_ns(self, basis: Basis) -> tuple[Ints, ...]:
        """Return the step times of each run to compare. Raises RunError for a run without steps."""
        return tuple(_steps_ns(each, basis) for each in self.compared_runs(basis))

    def step_ns(self, basis: Basis) -> int:
        """Return the typical step time: the statistic of the basis for each run, averaged over runs."""
        return round(fmean(float(basis.statistic.compute(steps)) for steps in self.steps_ns(basis)))

    def other_cores(self, basis: Basis) -> float:
        """Return how many cores other programs used on average during the compared steps; 0 if unknown."""
        return fmean(
            cores_used_by_others(each.run, each.steps, _compared(each, basis)) or 0.0
            for each in self.compared_runs(basis)
        )

    def disturbed_steps(self, basis: Basis) -> tuple[int, int]:
        """Return how many steps are excluded as disturbed by other programs, and the number of all steps."""
        total = sum(int(_eligible(each, basis).sum()) for each in self.runs)
        return total - sum(int(_compared(each, basis).sum()) for each in self.compared_runs(basis)), total


def build_side(runs: Runs) -> ComparedSide:
    """Build a side from a run or runs. Raises RunError for anything else."""
    if isinstance(runs, Run):
        return ComparedSide(runs.name, (diagnose(runs),))
    if isinstance(runs, Ranks) or not isinstance(runs, Sequence) or not _repeats(runs):
        diagnosis = diagnose(runs)
        return ComparedSide(diagnosis.run.name, (diagnosis,))
    return ComparedSide(_shared_name(runs), tuple(diagnose(run) for run in runs))


def with_unique_names(sides: Sequence[ComparedSide]) -> list[ComparedSide]:
    """Make the names of the sides unique: equal names get a number."""
    uses = Counter(one.name for one in sides)
    numbers: Counter[str] = Counter()
    renamed = []
    for one in sides:
        numbers[one.name] += 1
        renamed.append(replace(one, name=f"{one.name} ({numbers[one.name]})") if uses[one.name] > 1 else one)
    return renamed


def _repeats(runs: Sequence[Run]) -> bool:
    """Whether these are repeated runs of one program. Runs of several ranks are one job."""
    if not runs or not all(isinstance(run, Run) for run in runs):
        return False
    ranks = {run.rank for run in runs}
    return len(runs) == 1 or None in ranks or len(ranks) == 1


def _shared_name(runs: Sequence[Run]) -> str:
    """Return the common prefix of names such as "before 1" and "before 2"."""
    first, *others = (run.name for run in runs)
    shared_positions = itertools.takewhile(
        lambda at: all(name[at : at + 1] == first[at] for name in others), range(len(first))
    )
    return first[: sum(1 for _ in shared_positions)].rstrip(" -_.0123456789") or first


def choose_basis(sides: Sequence[ComparedSide], *, averaged: bool) -> Basis:
    """Choose unprofiled steps if every run has them, and undisturbed steps if every side has enough of them."""
    profiled = not all(each.steps.unprofiled_ns is not None for side_ in sides for each in side_.runs)
    choice = Basis(profiled=profiled, statistic=Statistic.MEAN if averaged else Statistic.MEDIAN, undisturbed=True)
    if not all(2 * len(side_.compared_runs(choice)) >= len(side_.runs) for side_ in sides):
        choice = replace(choice, undisturbed=False)
    return choice if averaged else replace(choice, statistic=_steadiest(sides, choice))


def _steadiest(sides: Sequence[ComparedSide], upon: Basis) -> Statistic:
    in_turn = len(sides) == 2 and are_alternating(*(side_.compared_runs(upon) for side_ in sides))
    return steadiest_statistic([side_.steps_ns(upon) for side_ in sides], in_turn)


def are_alternating(before: Sequence[Diagnosis], after: Sequence[Diagnosis]) -> bool:
    """Whether the runs of both sides alternated: the first of both, then the second of both, and so on."""
    if len(before) != len(after) or len(before) < 3:
        return False
    starts_ns = [each.run.began_ns for pair in zip(before, after, strict=True) for each in pair]
    known_ns = [at for at in starts_ns if at is not None]
    pairs = [sorted(known_ns[first : first + 2]) for first in range(0, len(known_ns), 2)]
    return len(known_ns) == len(starts_ns) and all(one[1] < other[0] for one, other in itertools.pairwise(pairs))


def _rules(diagnosis: Diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


def _eligible(diagnosis: Diagnosis, basis: Basis) -> Mask:
    steps = diagnosis.steps
    return steps.interior if basis.profiled else steps.unprofiled


def _compared(diagnosis: Diagnosis, basis: Basis) -> Mask:
    mask = _eligible(diagnosis, basis)
    return mask & undisturbed_steps(diagnosis.run, diagnosis.steps) if basis.undisturbed else mask


def _calm_enough(diagnosis: Diagnosis, basis: Basis) -> bool:
    undisturbed, eligible = int(_compared(diagnosis, basis).sum()), int(_eligible(diagnosis, basis).sum())
    return undisturbed >= min(eligible, MIN_UNDISTURBED_STEPS * diagnosis.steps.burst)


def _steps_ns(diagnosis: Diagnosis, basis: Basis) -> Ints:
    steps, eligible = diagnosis.steps, _eligible(diagnosis, basis)
    durations_ns, undisturbed = steps.dur_ns[eligible], _compared(diagnosis, basis)[eligible]
    if basis.statistic is Statistic.MEAN and (eligible[1:] & eligible[:-1]).any():
        # Rare events may happen between two steps, such as the start of the workers of an epoch.
        adjacent = eligible[1:] & eligible[:-1]
        durations_ns, undisturbed = np.diff(steps.start_ns)[adjacent], _compared(diagnosis, basis)[:-1][adjacent]
    is_aborted = diagnosis.run.outcome not in _COMPLETE_OUTCOMES and not completed_steps(
        diagnosis.run, steps.detected_by, len(steps)
    )
    if is_aborted or not len(durations_ns) or not np.median(durations_ns):  # those of a damaged recording may be empty
        raise _without_steps(diagnosis.run)
    # A burst of steps counts only if none of its steps was disturbed.
    calm_bursts = burst_means(undisturbed.astype(np.int64) * 1000, steps.burst) == 1000
    return np.asarray(
        burst_means(durations_ns, steps.burst)[calm_bursts]
        if calm_bursts.any()
        else burst_means(durations_ns, steps.burst),
        np.int64,
    )


def _without_steps(run: Run) -> RunError:
    why, fix = "it contains no complete step of a loop", "record the training loop, and let it run for"
    if run.outcome not in _COMPLETE_OUTCOMES:
        why, fix = (
            f"it {ending(run)} before its first complete step",
            "correct the error, and record the run again with",
        )
    return RunError(f"The run {run.name!r} has no steps to compare.", why=why, fix=f"{fix} at least twelve steps")


def ending(run: Run) -> str:
    """Say how a run ended that did not complete: "crashed (ValueError)"."""
    return "was killed" if run.outcome == KILLED else f"crashed ({clean(run.outcome)})"
