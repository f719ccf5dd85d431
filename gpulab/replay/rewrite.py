"""Rewrite: a change applied to a graph, with its grade, its cost, and what remains unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from gpulab.replay.graph.graph import Graph
from gpulab.wording import percent

# How much of a prediction is measured, and its error as a fraction of the saving before any prediction was checked.
LOADING_BOUND = "data loading at no cost"  # the bound of several changes of the DataLoader
GRADES: Mapping[str, tuple[str, float]] = {
    "A": ("removes a wait or a cost; the replay computes the gain", 0.05),
    "B": ("estimated from measurements in this run", 0.10),
    "C": ("estimated from a model of the hardware", 0.25),
    "D": ("extrapolated from other hardware", 0.30),
}


def grade_text(grade: str) -> str:
    """Return a grade and what it means: "B (A is best, D is worst): estimated from measurements in this run"."""
    return f"{grade} (A is best, D is worst): {GRADES[grade][0]}"


def least_margin_text(grade: str) -> str:
    """Return how far each end of the range of a prediction of this grade is from its middle, at least."""
    frac = GRADES[grade][1]
    return f"{percent(frac)} of the predicted change, or {percent(2 * frac)} of the predicted step if that is less"


@dataclass(frozen=True)
class Draw:
    """One choice of all unknowns: the position of each between its best and its worst value.

    The same name means the same unknown in every rewrite. `Draw()` is the middle of all. The draws of a set divide the
    range of each unknown into equal parts, one for each draw, in random order (a Latin hypercube). The 10th and 90th
    percentile are then exact for one unknown, and for a sum of several as precise as with twice as many independent
    draws (40 as 75, in a simulation).
    """

    positions: Mapping[str, float] = field(default_factory=dict)
    default_position: float = 0.5
    number: int | None = None  # of the draw in its set; None: `default_position` for all unknowns without a position
    count: int = 1  # of draws in the set

    def between(self, name: str, best: float, worst: float) -> float:
        """Return a value between the best and the worst likely one, on a linear scale."""
        return best + self._position(name) * (worst - best)

    def ratio(self, name: str, best: float, worst: float) -> float:
        """Return such a value on a logarithmic scale, for quantities that may differ by a factor of several."""
        return float(np.exp(self.between(name, float(np.log(best)), float(np.log(worst)))))

    def _position(self, name: str) -> float:
        if name in self.positions:
            return self.positions[name]
        return self.default_position if self.number is None else _positions(name, self.count)[self.number]


@lru_cache(maxsize=1_000)
def _positions(name: str, count: int) -> list[float]:
    """Return the position of an unknown in each draw of a set; their order depends on its name alone."""
    order = np.random.default_rng([count, *name.encode()]).permutation(count)
    positions: list[float] = ((order + 0.5) / count).tolist()
    return positions


MIDDLE = Draw()

# The value of a rewrite: a number, a word, or True if it takes none.
Value = float | str | bool


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """One kind of change. `edit` is a function of graph, value and draw; its docstring is the page of %gpuwhy."""

    name: str  # as users type it: "workers"
    edit: Callable[[Graph, Value, Draw], Graph]
    best_case: Callable[[Graph, Value], Graph]  # the best case: all costs of the change are zero
    grade: str  # one of GRADES
    about: str  # the change in a few words: "N DataLoader workers"
    bound_label: str  # the subject of "gives at most": "data loading at no cost"
    refusal_reason: Callable[[Graph, Value], str | None]  # why it cannot be predicted from this run; None if it can
    value_help: str = ""  # what its value is: "a number of processes"; "" if it takes none
    default: Value | None = True  # the default value; None: a value is required
    parse: Callable[[str], Value] | None = None  # parse the typed value; raises ValueError with the reason
    removes_waits: bool = True  # it removes waits or interruptions; on a CPU the rest of the step may then run faster
    needs_operators: bool = False  # on a GPU: what the host does outside CUDA calls must be known
    bound_only: bool = False  # not a possible change, only an upper bound
    cost: str = ""  # its other costs: memory, accuracy, work
    code: Callable[[Graph, Value], str] | None = None  # code that applies it, if it is short
    work_factor: Callable[[Graph, Value], float] | None = None  # factor on the samples per step; None: 1


@dataclass(frozen=True)
class Change:
    """A rewrite with its value."""

    rewrite: Rewrite
    value: Value

    def __str__(self) -> str:
        return self.rewrite.name if self.value is True else f"{self.rewrite.name}={self.value}"


class _Bounded(Protocol):
    """A kind of change, of a run or of a job, that has a best case."""

    @property
    def name(self) -> str:
        """Return the name that users type."""

    @property
    def bound_label(self) -> str:
        """Return what its best case assumes, a noun phrase."""


def joint_bound_label(rewrites: Sequence[_Bounded]) -> str:
    """Return what the bound of these changes together assumes, a noun phrase after "upper bound with"."""
    if len(rewrites) == 1:
        return rewrites[0].bound_label
    return f"{' and '.join(rewrite.name for rewrite in rewrites)} at their best"
