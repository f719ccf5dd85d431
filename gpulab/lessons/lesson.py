"""A lesson as data: what it asks, what is right, what is said to each answer, and the card that sums it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gpulab.errors import GpulabError

Hints = tuple[str, str, str]  # where to look, which counter, which line
NEEDS = ("cpu", "gpu-optional")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer that can be chosen."""

    key: str  # "a", "b", ...
    text: str
    told: str = ""  # what is said to who chooses it
    below: float | None = (
        None  # of a measured question: right where the measured value is under this, and no earlier one
    )


@dataclass(frozen=True, kw_only=True)
class Question:
    """Asked before a measurement (predict, reveal) or about one (check).

    `right` is the key of the right choice; None where what is measured decides: then every choice but the last has
    `below`. Of a question without choices, `judge` gives what is still wrong with an answer, and None for a right one.
    """

    key: str
    ask: str
    choices: tuple[Choice, ...] = ()
    right: str | None = None
    because: str = ""  # the reason, said once the answer is known
    hints: Hints | None = None
    judge: Callable[[Any], str | None] | None = None

    def choice(self, key: str) -> Choice:
        """The choice of this key. Raises GpulabError where there is none."""
        for one in self.choices:
            if one.key == str(key).strip().lower():
                return one
        raise GpulabError(
            f"{self.key} has no answer {key!r}.",
            why="it can be answered with " + ", ".join(one.key for one in self.choices),
            fix=f'give one of these letters, as "{self.choices[0].key}"' if self.choices else "see the question",
        )

    def right_for(self, measured: float | None) -> Choice | None:
        """The right choice, by what was measured where that decides; None where neither tells."""
        if self.right is not None:
            return self.choice(self.right)
        if measured is None or not self.choices:
            return None
        return next((one for one in self.choices if one.below is not None and measured < one.below), self.choices[-1])


@dataclass(frozen=True, kw_only=True)
class Par:
    """A count to bring down to par, or up to it."""

    key: str
    what: str  # "file opens in an epoch"
    par: int
    lower_is_better: bool = True
    hints: Hints | None = None

    def reached(self, count: int) -> bool:
        """Whether this count is as good as par."""
        return count <= self.par if self.lower_is_better else count >= self.par


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One before and after of the course: "05.1", and what it shows in half a line."""

    number: str
    shows: str


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One guided notebook."""

    id: str  # the notebook's name without its ending: "05_data_loading"
    title: str
    question: str  # that it answers
    minutes: int
    budget_s: int = 60  # running every cell at size tiny takes at most this long
    level: int = 1  # 1 to 3
    needs: str = "gpu-optional"
    without_gpu: str = ""  # what is different without a CUDA GPU, in a sentence
    before: tuple[str, ...] = ()  # lessons to have done
    outcomes: tuple[str, ...] = ()
    symptom: str = ""  # the summary card: how it shows
    signature: str = ""  # the counter that tells it from its rivals
    fix: str = ""
    not_when: str = ""  # when the fix does not help
    experiments: tuple[Experiment, ...] = ()
    questions: tuple[Question, ...] = field(default=(), repr=False)
    pars: tuple[Par, ...] = field(default=(), repr=False)

    @property
    def number(self) -> str:
        """Of the notebook, as in "05"."""
        return self.id.partition("_")[0]

    def asked(self, key: str) -> Question:
        """A question by its key. Raises GpulabError where there is none."""
        return _named(self.questions, key, f"question {key!r} in lesson {self.id}")

    def par(self, key: str) -> Par:
        """A par by its key. Raises GpulabError where there is none."""
        return _named(self.pars, key, f"score {key!r} in lesson {self.id}")


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


K = TypeVar("K", bound=_Keyed)


def _named(some: tuple[K, ...], key: str, what: str) -> K:
    for one in some:
        if one.key == key:
            return one
    raise GpulabError(
        f"There is no {what}.", why=f"there are {', '.join(one.key for one in some) or 'none'}", fix="use one of these"
    )
