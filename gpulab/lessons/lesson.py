"""A lesson as data: questions, right answers, feedback on each answer, targets, and the texts of its summary card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gpulab.errors import GpulabError
from gpulab.wording import did_you_mean

Hints = tuple[str, str, str]  # where to look, which counter, which line of code or of the report
NEEDS = ("cpu", "gpu-optional")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of the answers that a question offers."""

    key: str  # "a", "b", ...
    text: str
    feedback: str = ""  # feedback for a learner who chose it
    # In a question that a measurement decides: right if the value is below this limit and no earlier choice is right.
    below: float | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question before a measurement (predict, reveal) or about one (check).

    `right` is the key of the right choice; None if the measured value decides: then every choice except the last has a
    limit `below`, and `expected` is the key of the choice that it should give. For a question without choices,
    `find_problem` returns the problem with an answer, or None if it is right.
    """

    key: str
    prompt: str
    choices: tuple[Choice, ...] = ()
    right: str | None = None
    expected: str | None = None  # another result means an unfinished blank, a mistake, or an unusual machine
    explanation: str = ""  # the explanation, shown with the right answer
    hints: Hints | None = None
    find_problem: Callable[[Any], str | None] | None = None

    def choice(self, key: str) -> Choice:
        """Return the choice with this key. Raises GpulabError if there is none."""
        for choice in self.choices:
            if choice.key == str(key).strip().lower():
                return choice
        raise GpulabError(
            f"The question {self.key} has no answer {key!r}.",
            why="its answers are " + ", ".join(choice.key for choice in self.choices),
            fix=f'answer with one of these letters, for example "{self.choices[0].key}"'
            if self.choices
            else "read the question for the kind of answer",
        )

    def right_choice(self, measured: float | None) -> Choice | None:
        """Return the right choice, given the measured value; None if it is not known."""
        if self.right is not None:
            return self.choice(self.right)
        if measured is None or not self.choices:
            return None
        limits = (choice for choice in self.choices if choice.below is not None and measured < choice.below)
        return next(limits, self.choices[-1])


@dataclass(frozen=True, kw_only=True)
class Target:
    """A count with a target that it should not exceed, or should reach."""

    key: str
    unit: str  # "file opens in an epoch"
    value: int
    lower_is_better: bool = True
    hints: Hints | None = None

    def reached(self, count: int) -> bool:
        """Return whether this count reaches the target."""
        return count <= self.value if self.lower_is_better else count >= self.value


@dataclass(frozen=True, kw_only=True)
class LessonExperiment:
    """One experiment of the course: its number, such as "05.1", and a short description."""

    number: str
    description: str


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One guided notebook."""

    id: str  # the file name of the notebook without its suffix: "05_data_loading"
    title: str
    question: str  # which the lesson answers
    minutes: int
    budget_s: int = 60  # upper limit for running every cell at size tiny
    level: int = 1  # 1 to 3
    needs: str = "gpu-optional"
    without_gpu: str = ""  # one sentence: what differs without a CUDA GPU
    prerequisites: tuple[str, ...] = ()  # ids of the lessons to do first
    outcomes: tuple[str, ...] = ()
    symptom: str = ""  # on the summary card
    signature: str = ""  # the counter that tells this cause from similar ones
    fix: str = ""
    limits: str = ""  # when the fix does not help
    experiments: tuple[LessonExperiment, ...] = ()
    questions: tuple[Question, ...] = field(default=(), repr=False)
    targets: tuple[Target, ...] = field(default=(), repr=False)

    @property
    def number(self) -> str:
        """The number of the notebook, such as "05"."""
        return self.id.partition("_")[0]

    def find_question(self, key: str) -> Question:
        """Return the question with this key. Raises GpulabError if there is none."""
        return _find(self.questions, key, f"question {key!r} in lesson {self.id}")

    def target(self, key: str) -> Target:
        """Return the target with this key. Raises GpulabError if there is none."""
        return _find(self.targets, key, f"score {key!r} in lesson {self.id}")


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


K = TypeVar("K", bound=_Keyed)


def _find(items: tuple[K, ...], key: str, description: str) -> K:
    for item in items:
        if item.key == key:
            return item
    keys = [item.key for item in items]
    raise GpulabError(
        f"There is no {description}.",
        why=f"the keys are: {', '.join(keys) or 'none'}",
        fix=did_you_mean(key, keys) or "use one of these keys",
    )
