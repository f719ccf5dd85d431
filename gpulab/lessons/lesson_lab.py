"""Lab: an open lesson. A notebook calls its methods to ask, reveal, check, claim and sum up; each returns a view."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import date
from typing import Any, TypeVar

from gpulab.capture.protection.cuda_check import is_cuda_available
from gpulab.errors import GpulabError, RunError
from gpulab.lessons import question_view
from gpulab.lessons.card import device_card, summary
from gpulab.lessons.conditions import false_condition
from gpulab.lessons.contents import next_lessons
from gpulab.lessons.course import lesson
from gpulab.lessons.equality import check_equality
from gpulab.lessons.lesson import Choice, Lesson, Question
from gpulab.lessons.sources import MEASURED, SourceLike, source_label
from gpulab.lessons.stable_view import LessonView
from gpulab.lessons.verdicts import DIFFERENT_RESULTS, Claim, claim_view, equality_view, format_value, score_view
from gpulab.run import Machine
from gpulab.user_data import course_progress
from gpulab.views.sheet.sheet import Sheet
from gpulab.views.sheet.view import View
from gpulab.virtual.default_gpu import DEFAULT_GPU

SIZES = ("tiny", "lab", "full")
T = TypeVar("T")
_NUMBER = re.compile(r"\d[\d.,]*")


def lab(id: str, size: str | None = None) -> Lab:
    """Open a lesson by name or number; the first cell of its notebook ends with this.

    `size`: "tiny" (the whole notebook in a minute), "lab" (for a laptop) or "full" (for a GPU). The default is the
    environment variable GPULAB_SIZE, else "full" with a CUDA GPU and "lab" without one. Raises GpulabError if there is
    no such lesson or size.
    """
    from gpulab import sensors  # queries the driver

    machine, on_gpu = sensors.describe_machine(), is_cuda_available()
    selected_size = size or os.environ.get("GPULAB_SIZE", "").strip() or ("full" if on_gpu else "lab")
    if selected_size not in SIZES:
        raise GpulabError(
            f"There is no notebook size {selected_size!r}.",
            why=f"the sizes are {', '.join(SIZES)}",
            fix="use one of these, as the argument size or in the environment variable GPULAB_SIZE",
        )
    return Lab(lesson(id), machine, selected_size, "cuda" if on_gpu else "cpu")


class Lab:
    """An open lesson. It records the learner's answers and the claims, for the card at its end.

    `device` is "cuda" or "cpu", `size` one of SIZES, `machine` the computer it runs on. Every method returns a view for
    the end of a cell, whose text is the same on every machine.
    """

    def __init__(self, lesson: Lesson, machine: Machine, size: str, device: str) -> None:
        self.lesson, self.machine, self.size, self.device = lesson, machine, size, device
        self._predicted = _stored_predictions(lesson)
        self._dates = course_progress.read_prediction_dates(lesson.id)  # of the predictions
        self._earlier = set(self._predicted)  # questions whose prediction is of an earlier session
        self._resolved: dict[str, Choice] = {}
        self._checked: dict[str, bool] = {}
        self._hint_level: dict[str, int] = {}
        self._claims: dict[str, Claim] = {}
        self._equal: dict[str, bool] = {}  # by the place of a call of `same`: whether it found both sides equal
        self._last_same: str | None = None  # the place of a call that no claim has followed yet
        self._compared: dict[str, str] = {}  # the place of the comparison on which each claim depends

    def __repr__(self) -> str:
        return repr(self.view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.view._repr_mimebundle_()

    @property
    def view(self) -> View:
        """The device card: the lesson, and the hardware that it runs on here."""
        on_cpu = f"on this CPU; parts that need a GPU run on a virtual {DEFAULT_GPU.upper()} and are labelled"
        mode = "everything live on this GPU" if self.device == "cuda" else on_cpu
        return View(Sheet(f"gpulab: lesson {self.lesson.id}", device_card(self.lesson, self.machine, self.size, mode)))

    def pick(self, tiny: T, lab: T, full: T | None = None) -> T:
        """Return the value for the size of this notebook; `full` defaults to the value of `lab`."""
        return {"tiny": tiny, "lab": lab, "full": lab if full is None else full}[self.size]

    @contextlib.contextmanager
    def gpu(self, name: str, gpu: str = DEFAULT_GPU, *, steps: int | None = None) -> Iterator[None]:
        """Record a block of CUDA code as a run with this name, on a CUDA GPU or, if there is none, on a virtual one.

        The run is `gpulab.runs[name]`; its source says which GPU it was. `%%gpuprofile --virtual auto NAME` does the
        same for a whole cell and shows the report. `steps`: how many steps to record; by default as many as a diagnosis
        needs.
        """
        recording: AbstractContextManager[Any]
        if self.device == "cuda":
            from gpulab.capture.profile_block import profile

            recording = profile(name, steps=steps)
        else:
            from gpulab.virtual.session import VirtualGpu

            recording = VirtualGpu(gpu, name, steps=steps)
        with recording:
            yield

    def predict(self, key: str) -> LessonView:
        """Ask a question before its measurement; the learner presses a button or calls `answer`."""
        question, chosen = self.lesson.find_question(key), self._predicted.get(key)
        earlier = self._dates.get(key, "") if key in self._earlier else None
        return question_view.ask_view(
            question, chosen.key if chosen else "", earlier, lambda letter: self._choose(question, letter)
        )

    def answer(self, key: str, choice: str) -> LessonView:
        """Record a prediction by the letter of a choice. Raises GpulabError if there is no such choice."""
        question = self.lesson.find_question(key)
        self._choose(question, choice)
        return question_view.confirmation_view(question, self._predicted[key])

    def _choose(self, question: Question, letter: str) -> str:
        self._predicted[question.key] = question.choice(letter)
        self._earlier.discard(question.key)
        self._dates[question.key] = date.today().isoformat()
        letters = {key: choice.key for key, choice in self._predicted.items()}
        course_progress.store_predictions(self.lesson.id, letters, self._dates)
        return ""

    def reveal(self, key: str, measured: float | None = None, unit: str = "") -> LessonView:
        """Show the right answer, and in the HTML the learner's prediction, if there is one.

        If the measured value gives another answer than it should, say so, and judge no prediction by it.

        `measured`: the value that decides, for a question whose answer depends on the measurement; it is always shown.
        """
        question = self.lesson.find_question(key)
        right = question.right_choice(measured)
        value = "" if measured is None else format_value(measured, unit)
        if right is not None and right.key != (question.expected or right.key):
            self._resolved.pop(key, None)
            return question_view.unexpected_view(question, right, value)
        if right is not None:
            self._resolved[key] = right
        return question_view.solution_view(question, right, self._predicted.get(key), value)

    def check(self, key: str, value: Any) -> LessonView:
        """Show whether an answer is right, and why; None: it is not answered yet, and choices are buttons."""
        question = self.lesson.find_question(key)
        self._checked[key], feedback = question_view.check_answer(
            question, value, lambda letter: self._check_choice(question, letter)
        )
        return feedback

    def _check_choice(self, question: Question, letter: str) -> str:
        self._checked[question.key], feedback = question_view.choice_feedback(question, letter)
        return feedback

    def hint(self, key: str) -> LessonView:
        """Show the next of three hints to a question or a score: where to look, which counter, which line."""
        hints = next((par.hints for par in self.lesson.targets if par.key == key), None)
        hints = hints or next((question.hints for question in self.lesson.questions if question.key == key), None)
        self._hint_level[key] = min(3, self._hint_level.get(key, 0) + 1)
        return question_view.hint_view(key, hints, self._hint_level[key])

    def same(self, before: Any, after: Any, equal: bool | float = True) -> LessonView:
        """Show whether two variants gave the same result, within the precision of their data types.

        If they differ, the next claim fails. `equal`: a share of the largest value as another tolerance.
        """
        try:
            result, problem = check_equality(before, after, equal), ""
        except RunError as error:
            result, problem = None, error.why
        caller = sys._getframe(1)
        self._last_same = f"{caller.f_code.co_filename}:{caller.f_lineno}"  # IPython names a cell by its code
        self._equal[self._last_same] = result is not None
        return equality_view(result, problem)

    def claim(
        self,
        sentence: str,
        holds: bool,
        *,
        before: float | None = None,
        after: float | None = None,
        unit: str = "",
        names: tuple[str, str] | None = None,
        source: SourceLike = MEASURED,
    ) -> LessonView:
        """State the result of an experiment in one line, and whether it holds here.

        `before`, `after`, `unit`: the measured values, which are shown and stored for the card ("%": fractions of 1).
        `names`: what the two values are, if they are not before and after a change.
        `source`: MEASURED, COUNTED, SIMULATED, or the run that they come from. If `same` found a difference just
        before, the claim fails. A claim that fails shows which of its conditions is false.
        """
        key = _NUMBER.sub("#", sentence)  # a repeated claim replaces the earlier one, also with other numbers
        if self._last_same is not None:
            self._compared[key], self._last_same = self._last_same, None
        if not self._equal.get(self._compared.get(key, ""), True):
            sentence, holds, false = f"{sentence}: {DIFFERENT_RESULTS}", False, ""
        else:
            false = "" if holds else false_condition(sys._getframe(1), "claim", "holds", 1)
        claim = Claim(
            sentence=sentence,
            holds=bool(holds),
            source=source_label(source),
            before=before,
            after=after,
            unit=unit,
            names=names,
        )
        self._claims[key] = claim
        return claim_view(claim, false)

    def score(self, key: str, count: int | None) -> LessonView:
        """Show a count and its target; None means that the task is not done, or its result is not right."""
        return score_view(self.lesson.target(key), count)

    def card(self) -> View:
        """Sum up the lesson with the learner's own results, and store it as done; `.save("card.html")` saves it."""
        predicted = []
        for key, right in self._resolved.items():
            prediction = self._predicted[key].text if key in self._predicted else "not answered"
            predicted.append((self.lesson.find_question(key).prompt, prediction, right.text))
        claims = tuple(self._claims.values())
        done = course_progress.LessonResults(
            date=date.today().isoformat(),
            device=self.machine.device,
            predicted=len(self._predicted),
            foreseen=sum(self._resolved.get(key) == choice for key, choice in self._predicted.items()),
            right=sum(self._checked.values()),
            held=sum(claim.holds for claim in claims),
            claims=len(claims),
        )
        course_progress.store_progress(self.lesson.id, done)
        blocks = summary(self.lesson, claims, predicted, next_lessons(self.lesson))
        return View(Sheet(f"gpulab: card of lesson {self.lesson.id}", blocks))


def _stored_predictions(lesson: Lesson) -> dict[str, Choice]:
    """Return the predictions from earlier sessions, for questions and choices that still exist."""
    letters, predictions = course_progress.read_predicted_letters(lesson.id), {}
    for question in lesson.questions:
        choices = {choice.key: choice for choice in question.choices}
        if letters.get(question.key) in choices:
            predictions[question.key] = choices[letters[question.key]]
    return predictions
