"""Twelve anonymous runs to diagnose: as they were handed in, and with what was planted taken out.

`case(n)` and `mended(n)` are the two; `reads(n)` gives all counters of a case. Answers are judged by `CASES`
(gpulab.lessons.labs.drills.cases), and what there is to look at before anybody says what is wrong is `evidence(n)`
(gpulab.lessons.labs.drills.evidence). The runs are datasets (gpulab.files.datasets); each has a data card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpulab.errors import GpulabError
from gpulab.files.datasets import dataset
from gpulab.lessons.labs.drills.cases import ACTIONS, CASES, CAUSES, Case
from gpulab.lessons.labs.drills.counters import COUNTERS, counters
from gpulab.run import Run

__all__ = [
    "ACTIONS",
    "CASES",
    "CAUSES",
    "COUNTERS",
    "Case",
    "Triaged",
    "beside",
    "case",
    "mended",
    "reads",
    "right_picks",
    "told_apart",
    "triaged",
]


def case(number: int) -> Run:
    """The run of a case, 1 to 12."""
    return _run(_dataset_name(number))


def mended(number: int) -> Run:
    """The same training without the planted cause; the healthy case as it is."""
    return _fixed_run(_dataset_name(number)) or case(number)


def beside(name: str) -> Run:
    """A run that is no case: "worked_example", or "memory1" to "memory3", which ended in an out-of-memory error."""
    return _run(name)


def _dataset_name(number: int) -> str:
    return f"case{number:02}"


@cache
def _run(name: str) -> Run:
    return dataset(name).load()


@cache
def _fixed_run(name: str) -> Run | None:
    return dataset(name).load_fixed()


@cache
def _counters(name: str) -> Mapping[str, float | None]:
    return counters(_run(name))


def reads(which: int | str) -> Mapping[str, float | None]:
    """All counters of a case by its number, or of another recorded run by its name; worked out once."""
    return _counters(_dataset_name(which) if isinstance(which, int) else which)


def told_apart(one: float | None, other: float | None) -> bool:
    """Whether a counter reads differently in two runs: twice as much at the least, in one of them."""
    if one is None or other is None:
        return (one is None) != (other is None)
    low, high = sorted((one, other))
    return high > 0 and high >= 2 * max(low, 0.0)


def right_picks(answers: Mapping[str, Any]) -> int | None:
    """How many of the three words for each case are right; None before all twelve are answered."""
    if any(answers.get(each.key) is None for each in CASES):
        return None
    return sum(sum(each.right(answers[each.key])) for each in CASES)


@dataclass(frozen=True, kw_only=True)
class Triaged:
    """What a triage made of the twelve: causes it named, and how many counters it read for that."""

    named: tuple[str, ...]
    right: int
    counters_read: int
    beside: str = ""  # what it says to "worked_example", a run it was not made for

    def __str__(self) -> str:
        wrong = [
            f"case {each.number}, to which it says {said}"
            for said, each in zip(self.named, CASES, strict=True)
            if said != each.cause
        ]
        score = f"{self.right} of {len(CASES)} causes right, {self.counters_read} counters read"
        return "\n".join([f"{score}; worked example: {self.beside}", *(f"wrong: {each}" for each in wrong)])


def triaged(triage: Callable[[Callable[[str], float]], str] | None) -> Triaged | None:
    """Let a function name the cause of each case from counters that it asks for, one by one; None for none.

    It is given `read`, which takes a counter's name and gives its value, 0.0 where absent. A counter that is read
    twice in one case counts once.
    """
    if triage is None:
        return None
    named, many = [], 0
    for each in CASES:
        asked: set[str] = set()
        named.append(triage(_reader(reads(each.number), asked)))
        many += len(asked)
    right = sum(cause == each.cause for cause, each in zip(named, CASES, strict=True))
    beside = triage(_reader(reads("worked_example"), set()))
    return Triaged(named=tuple(named), right=right, counters_read=many, beside=beside)


def _reader(values: Mapping[str, float | None], asked: set[str]) -> Callable[[str], float]:
    """What a triage is given to read counters with; `asked` is told of each."""

    def read(name: str) -> float:
        if name not in values:
            raise GpulabError(f"There is no counter {name!r}.", why=f"there are {', '.join(values)}", fix="use one")
        asked.add(name)
        return values[name] or 0.0

    return read
