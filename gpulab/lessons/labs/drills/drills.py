"""Twelve anonymous runs to diagnose: each with a planted cause, and the same training without it.

`case(n)` is the run, `fixed_case(n)` the run without the cause, and `counter_values(n)` all counters of the case.
Answers are judged by `CASES` (gpulab.lessons.labs.drills.cases); `evidence(n)` (gpulab.lessons.labs.drills.evidence)
shows the run without a diagnosis. The runs are datasets (gpulab.files.datasets); each has a data card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpulab.errors import GpulabError
from gpulab.files.datasets import dataset
from gpulab.lessons.labs.drills.cases import ACTIONS, ALL_CASES, CASES, CAUSES, RECORDED_CASES, DrillCase
from gpulab.lessons.labs.drills.run_counters import RUN_COUNTERS, read_all_counters
from gpulab.run import Run

__all__ = [
    "ACTIONS",
    "CASES",
    "CAUSES",
    "RECORDED_CASES",
    "RUN_COUNTERS",
    "DrillCase",
    "TriageScore",
    "case",
    "clearly_different",
    "count_correct_words",
    "counter_values",
    "fixed_case",
    "named_run",
    "score_triage",
]


def case(number: int) -> Run:
    """Return the run of a case, 1 to 16."""
    return _run(_dataset_name(number))


def fixed_case(number: int) -> Run:
    """Return the same training without the planted cause; for the healthy case, the case itself."""
    return _fixed_run(_dataset_name(number)) or case(number)


def named_run(name: str) -> Run:
    """Return another run: "worked_example", or "memory1" to "memory3", which ended in an out-of-memory error."""
    return _run(name)


def _dataset_name(number: int) -> str:
    if not 1 <= number <= len(ALL_CASES):
        raise GpulabError(
            f"There is no case {number}.",
            why=f"the cases are 1 to {len(ALL_CASES)}",
            fix="use one of these numbers",
        )
    return ALL_CASES[number - 1].dataset_name


@cache
def _run(name: str) -> Run:
    return dataset(name).load()


@cache
def _fixed_run(name: str) -> Run | None:
    return dataset(name).load_fixed()


@cache
def _counters(name: str) -> Mapping[str, float | None]:
    return read_all_counters(_run(name))


def counter_values(number_or_name: int | str) -> Mapping[str, float | None]:
    """Return all counters of a case by its number, or of another run by its name; cached."""
    return _counters(_dataset_name(number_or_name) if isinstance(number_or_name, int) else number_or_name)


def clearly_different(first: float | None, second: float | None) -> bool:
    """Return whether two readings of a counter differ by a factor of two or more, or only one of them is absent."""
    if first is None or second is None:
        return (first is None) != (second is None)
    low, high = sorted((first, second))
    return high > 0 and high >= 2 * max(low, 0.0)


def count_correct_words(answers: Mapping[str, Any], cases: Sequence[DrillCase] = CASES) -> int | None:
    """Count the correct words over all cases, three per case; None before all of them are answered."""
    if any(answers.get(each.key) is None for each in cases):
        return None
    return sum(sum(each.correct_words(answers[each.key])) for each in cases)


@dataclass(frozen=True, kw_only=True)
class TriageScore:
    """Score of a triage function on the twelve cases: its causes, and the number of counters that it read."""

    causes: tuple[str, ...]
    correct: int
    counters_read: int
    worked_example: str = ""  # its cause for "worked_example", a run that it was not written for

    def __str__(self) -> str:
        wrong = [
            f"case {each.number}: {cause}"
            for cause, each in zip(self.causes, CASES, strict=True)
            if cause != each.cause
        ]
        score = f"{self.correct} of {len(CASES)} causes right, {self.counters_read} counters read"
        return "\n".join([f"{score}; worked example: {self.worked_example}", *(f"wrong: {each}" for each in wrong)])


def score_triage(triage: Callable[[Callable[[str], float]], str] | None) -> TriageScore | None:
    """Score a triage function, which names the cause of each case from the counters that it reads; None for None.

    Its argument is `read`, which takes the name of a counter and returns its value, 0.0 if absent. A counter that is
    read twice in one case counts once.
    """
    if triage is None:
        return None
    causes, counters_read = [], 0
    for drill_case in CASES:
        counters_of_case: set[str] = set()
        causes.append(triage(_reader(counter_values(drill_case.number), counters_of_case)))
        counters_read += len(counters_of_case)
    right = sum(cause == each.cause for cause, each in zip(causes, CASES, strict=True))
    worked_example = triage(_reader(counter_values("worked_example"), set()))
    return TriageScore(causes=tuple(causes), correct=right, counters_read=counters_read, worked_example=worked_example)


def _reader(values: Mapping[str, float | None], names: set[str]) -> Callable[[str], float]:
    """Return the `read` function of a triage; it adds the names of the counters read to `names`."""

    def read(name: str) -> float:
        if name not in values:
            raise GpulabError(
                f"There is no counter {name!r}.", why=f"the counters are {', '.join(values)}", fix="use one of these"
            )
        names.add(name)
        return values[name] or 0.0

    return read
