"""Rewrite: a change made to a replay, with its grade, its price and what is not known about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from gpulab.replay.graph.graph import Graph

# How far a prediction rests on what was measured, and by how much of the saving it is off where nothing is known yet.
GRADES: Mapping[str, tuple[str, float]] = {
    "A": ("a wait or a cost taken away; the replay decides", 0.05),
    "B": ("priced by what this run measured", 0.10),
    "C": ("priced by a model of the hardware", 0.25),
    "D": ("worked out for other hardware", 0.30),
}


@dataclass(frozen=True)
class Draw:
    """One choice of everything that is not known: where each unknown lies between its best and its worst.

    The same name is the same unknown, whichever rewrite asks. `Draw()` is the middle of everything.
    """

    places: Mapping[str, float] = field(default_factory=dict)
    otherwise: float = 0.5
    seed: int | None = None  # None: `otherwise` for all that has no place

    def between(self, name: str, best: float, worst: float) -> float:
        """A value between the best and the worst that is likely: by equal steps."""
        return best + self._place(name) * (worst - best)

    def ratio(self, name: str, best: float, worst: float) -> float:
        """The same by equal ratios, for what may be several times as large."""
        return float(np.exp(self.between(name, float(np.log(best)), float(np.log(worst)))))

    def _place(self, name: str) -> float:
        if name in self.places:
            return self.places[name]
        if self.seed is None:
            return self.otherwise
        # Each unknown by its own stream of numbers: what else is asked, and in which order, must not matter.
        key = [self.seed, *name.encode()]
        return float(np.random.default_rng(key).random())


MIDDLE = Draw()

# What a rewrite is set to: a number, a word, or True where it takes nothing.
Value = float | str | bool


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """One way to change a step. `edit` is a function of graph, value and draw; its docstring is its page."""

    name: str  # as people type it: "workers"
    edit: Callable[[Graph, Value, Draw], Graph]
    ceiling: Callable[[Graph, Value], Graph]  # the same with its costs at nothing: no way of doing it can beat that
    grade: str  # one of GRADES
    about: str  # what it does, in a few words: "batches built by N worker processes"
    ceiling_means: str  # the subject of "gives at most": "even free data"
    lacking: Callable[[Graph, Value], str | None]  # why it cannot be told for this run; None where it can
    takes: str = ""  # what it is set to, in words: "a number of processes"; "" where it takes nothing
    usual: Value | None = True  # what it is set to where no value is given; None: a value must be given
    parse: Callable[[str], Value] | None = None  # from what was typed; raises ValueError with what is wrong
    calms: bool = True  # it ends a wait or an interruption, so that what is left of a step on a CPU may be faster alone
    bound: bool = False  # nothing anyone can do: it tells what cannot be beaten
    price: str = ""  # what it costs otherwise: memory, accuracy, work
    code: Callable[[Graph, Value], str] | None = None  # how to do it, where a line says it
    work: Callable[[Graph, Value], float] | None = None  # by how much more a step then does: samples; None: the same


@dataclass(frozen=True)
class Chosen:
    """A rewrite with its value."""

    rewrite: Rewrite
    value: Value

    def __str__(self) -> str:
        return self.rewrite.name if self.value is True else f"{self.rewrite.name}={self.value}"
