"""One side of a comparison: a run, the ranks of a job, or the same thing recorded several times."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from gpulab.analysis.host.other_programs import calm, other_cores
from gpulab.analysis.kernels.matching import Recorded
from gpulab.analysis.steps.detection import Mask, grouped
from gpulab.analysis.steps.ledger import Ledger
from gpulab.comparison.interval import Centre, steadiest
from gpulab.errors import RunError
from gpulab.files.ranks import Ranks
from gpulab.intervals import Ints
from gpulab.rules import Diagnosis, Finding, diagnose
from gpulab.run import Run

CALM_STEPS = 20  # fewer undisturbed steps than this, or bursts of them, are no median

Given = Run | Sequence[Run]  # what stands for a side


@dataclass(frozen=True)
class Basis:
    """Which steps are compared, the same on every side, and by which figure."""

    profiled: bool  # recorded steps, with the profiler's cost in them; else steps without the profiler
    centre: Centre  # the figure that stands for the steps of a run
    calm: bool = False  # only steps that no other program disturbed, and only runs with enough of these


@dataclass(frozen=True, eq=False)
class Side:
    """Its runs, diagnosed."""

    name: str
    runs: tuple[Diagnosis, ...]

    @cached_property
    def typical(self) -> Diagnosis:
        """The run whose step is the middle one: it stands for the side where only one can."""
        timed = sorted((each for each in self.runs if each.steps.step_ns), key=lambda each: each.steps.step_ns or 0)
        return timed[(len(timed) - 1) // 2] if timed else self.runs[0]

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in at least half of the runs, as the typical one tells it, else another."""
        told = [finding for each in (self.typical, *self.runs) for finding in each.findings]
        often = {rule: sum(rule in _rules(each) for each in self.runs) for rule in {finding.rule for finding in told}}
        first: dict[str, Finding] = {}
        for finding in told:
            if 2 * often[finding.rule] >= len(self.runs):
                first.setdefault(finding.rule, finding)
        return tuple(first.values())

    @property
    def recorded(self) -> tuple[Recorded, ...]:
        """The runs that have a ledger."""
        return tuple((each.run, each.steps, each.ledger) for each in self.runs if each.ledger is not None)

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Of the runs that have one."""
        return tuple(ledger for _, _, ledger in self.recorded)

    def used(self, basis: Basis) -> tuple[Diagnosis, ...]:
        """The runs that are compared: all, or those in which enough steps were left undisturbed."""
        if not basis.calm:
            return self.runs
        return tuple(each for each in self.runs if _calm_enough(each, basis))

    def steps_ns(self, basis: Basis) -> tuple[Ints, ...]:
        """The step times of each run that is compared. Raises RunError for a run without any."""
        return tuple(_steps_ns(each, basis) for each in self.used(basis))

    def step_ns(self, basis: Basis) -> int:
        """The typical step: of each run its median, or what else stands for it; of several runs the mean of these."""
        return round(fmean(float(basis.centre.of(steps)) for steps in self.steps_ns(basis)))

    def crowd(self, basis: Basis) -> float:
        """How many cores other programs used in the mean during the steps compared; 0 where it is not told."""
        return fmean(other_cores(each.run, each.steps, _compared(each, basis)) or 0.0 for each in self.used(basis))

    def left_out(self, basis: Basis) -> tuple[int, int]:
        """How many steps are not compared, as others disturbed them, and of how many."""
        all_of_them = sum(int(_eligible(each, basis).sum()) for each in self.runs)
        return all_of_them - sum(int(_compared(each, basis).sum()) for each in self.used(basis)), all_of_them


def side(given: Given) -> Side:
    """A side from what stands for it. Raises RunError for what is no run."""
    if isinstance(given, Run):
        return Side(given.name, (diagnose(given),))
    if isinstance(given, Ranks) or not isinstance(given, Sequence) or not _repeats(given):
        told = diagnose(given)
        return Side(told.run.name, (told,))
    return Side(_shared_name(given), tuple(diagnose(run) for run in given))


def told_apart(sides: Sequence[Side]) -> list[Side]:
    """The sides with names of their own: where several bear one, each has its number behind it."""
    count = Counter(each.name for each in sides)
    seen: Counter[str] = Counter()
    named = []
    for each in sides:
        seen[each.name] += 1
        named.append(replace(each, name=f"{each.name} ({seen[each.name]})") if count[each.name] > 1 else each)
    return named


def _repeats(runs: Sequence[Run]) -> bool:
    """Runs of one thing; those of several ranks are one job, and what is no run is for `diagnose` to refuse."""
    if not runs or not all(isinstance(run, Run) for run in runs):
        return False
    ranks = {run.rank for run in runs}
    return len(runs) == 1 or None in ranks or len(ranks) == 1


def _shared_name(runs: Sequence[Run]) -> str:
    """What names such as "before 1" and "before 2" begin with."""
    first, *others = (run.name for run in runs)
    alike = itertools.takewhile(lambda at: all(name[at : at + 1] == first[at] for name in others), range(len(first)))
    return first[: sum(1 for _ in alike)].rstrip(" -_.0123456789") or first


def basis(sides: Sequence[Side], *, averaged: bool) -> Basis:
    """Un-profiled steps where every run has them, undisturbed ones where every side has enough of these."""
    profiled = not all(each.steps.plain_ns is not None for one in sides for each in one.runs)
    upon = Basis(profiled=profiled, centre=Centre.MEAN if averaged else Centre.MEDIAN, calm=True)
    if not all(2 * len(one.used(upon)) >= len(one.runs) for one in sides):
        upon = replace(upon, calm=False)
    return upon if averaged else replace(upon, centre=_steadiest(sides, upon))


def _steadiest(sides: Sequence[Side], upon: Basis) -> Centre:
    in_turn = len(sides) == 2 and taken_in_turn(*(one.used(upon) for one in sides))
    return steadiest([one.steps_ns(upon) for one in sides], in_turn)


def taken_in_turn(before: Sequence[Diagnosis], after: Sequence[Diagnosis]) -> bool:
    """Whether runs were recorded one of each after the other: the first of both, the second of both, and so on."""
    if len(before) != len(after) or len(before) < 3:
        return False
    began = [each.run.began_ns for pair in zip(before, after, strict=True) for each in pair]
    told = [at for at in began if at is not None]
    pairs = [sorted(told[place : place + 2]) for place in range(0, len(told), 2)]
    return len(told) == len(began) and all(one[1] < other[0] for one, other in itertools.pairwise(pairs))


def _rules(diagnosis: Diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


def _eligible(diagnosis: Diagnosis, basis: Basis) -> Mask:
    steps = diagnosis.steps
    return steps.interior if basis.profiled else steps.plain


def _compared(diagnosis: Diagnosis, basis: Basis) -> Mask:
    mask = _eligible(diagnosis, basis)
    return mask & calm(diagnosis.run, diagnosis.steps) if basis.calm else mask


def _calm_enough(diagnosis: Diagnosis, basis: Basis) -> bool:
    left, every = int(_compared(diagnosis, basis).sum()), int(_eligible(diagnosis, basis).sum())
    return left >= min(every, CALM_STEPS * diagnosis.steps.burst)


def _steps_ns(diagnosis: Diagnosis, basis: Basis) -> Ints:
    steps, use = diagnosis.steps, _eligible(diagnosis, basis)
    chosen, kept = steps.dur_ns[use], _compared(diagnosis, basis)[use]
    if basis.centre is Centre.MEAN and (use[1:] & use[:-1]).any():
        # What strikes now and then may strike between two steps, as the start of an epoch's workers does.
        both = use[1:] & use[:-1]
        chosen, kept = np.diff(steps.start_ns)[both], _compared(diagnosis, basis)[:-1][both]
    if not len(chosen):
        raise RunError(
            f"The run {diagnosis.run.name!r} has no steps to compare.",
            why="no complete step of a loop was seen in it",
            fix="profile the cell that holds the training loop, and let it run for at least six steps",
        )
    # Steps that come in bursts stay together: a burst counts where nothing disturbed any of it.
    left = grouped(kept.astype(np.int64) * 1000, steps.burst) == 1000
    return np.asarray(grouped(chosen, steps.burst)[left] if left.any() else grouped(chosen, steps.burst), np.int64)
