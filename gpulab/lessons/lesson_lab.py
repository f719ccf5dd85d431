"""Lab: what a notebook of the course calls: it asks, resolves, claims and sums up. A call gives something to show."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import date
from typing import Any, TypeVar

from gpulab.errors import GpulabError, RunError
from gpulab.lessons import question_view
from gpulab.lessons.answer import Said
from gpulab.lessons.card import device_card, summary
from gpulab.lessons.contents import onward
from gpulab.lessons.course import lesson
from gpulab.lessons.equality import equality
from gpulab.lessons.lesson import Choice, Lesson, Question
from gpulab.lessons.sources import MEASURED, Sourced, named
from gpulab.lessons.verdicts import UNEQUAL, Claim, claimed, figure, sameness, scored
from gpulab.run import Machine
from gpulab.user_data import course_progress
from gpulab.views.sheet.sheet import Sheet
from gpulab.views.sheet.view import View
from gpulab.virtual.cuda_available import USUAL, cuda_here

SIZES = ("tiny", "lab", "full")
T = TypeVar("T")
_NUMBER = re.compile(r"\d[\d.,]*")


def lab(id: str, size: str | None = None) -> Lab:
    """Open a lesson, by name or number: end the first cell of its notebook with this.

    `size`: "tiny" (a minute in all), "lab" (a laptop) or "full" (a GPU); by default what GPULAB_SIZE says, else
    "full" with a CUDA GPU and "lab" without one. Raises GpulabError for a lesson or a size that there is not.
    """
    from gpulab import sensors  # asks the driver

    machine, on_gpu = sensors.machine(), cuda_here()
    asked_for = size or os.environ.get("GPULAB_SIZE", "").strip() or ("full" if on_gpu else "lab")
    if asked_for not in SIZES:
        raise GpulabError(
            f"A notebook cannot be {asked_for!r} in size.",
            why=f"sizes are {', '.join(SIZES)}",
            fix="choose one of them",
        )
    return Lab(lesson(id), machine, asked_for, "cuda" if on_gpu else "cpu")


class Lab:
    """One lesson as it is being done. It keeps what was answered and what held, for the card at its end.

    `device` is "cuda" or "cpu", `size` one of SIZES, `machine` what this runs on. Every method gives something that
    shows itself at the end of a cell, and whose text is the same on every machine.
    """

    def __init__(self, lesson: Lesson, machine: Machine, size: str, device: str) -> None:
        self.lesson, self.machine, self.size, self.device = lesson, machine, size, device
        self._predicted = _foretold(lesson)
        self._resolved: dict[str, Choice] = {}
        self._checked: dict[str, bool] = {}
        self._hinted: dict[str, int] = {}
        self._claims: dict[str, Claim] = {}
        self._differ = False  # the two results compared last are not the same

    def __repr__(self) -> str:
        return repr(self.view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self.view._repr_mimebundle_()

    @property
    def view(self) -> View:
        """What this notebook is about, and what it runs on here."""
        playing = f"live on this CPU; what needs a GPU is computed for a virtual {USUAL.upper()}, and says so"
        mode = "all of it live, on this GPU" if self.device == "cuda" else playing
        return View(Sheet(f"gpulab: lesson {self.lesson.id}", device_card(self.lesson, self.machine, self.size, mode)))

    def pick(self, tiny: T, lab: T, full: T | None = None) -> T:
        """One of these by the size of this notebook; `full` is as `lab` where it is left out."""
        return {"tiny": tiny, "lab": lab, "full": lab if full is None else full}[self.size]

    @contextlib.contextmanager
    def gpu(self, name: str, gpu: str = USUAL, *, steps: int | None = None) -> Iterator[None]:
        """Record a block of CUDA code under a name: on the GPU that is here, else on one that is computed.

        The run is `gpulab.runs[name]`, and says which. In a cell of its own, `%%gpuprofile --virtual auto NAME` does
        the same and shows the report. `steps`: how many to record; as many as a verdict needs if left out.
        """
        recording: AbstractContextManager[Any]
        if self.device == "cuda":
            from gpulab.capture.session import profile

            recording = profile(name, steps=steps)
        else:
            from gpulab.virtual.session import VirtualGpu

            recording = VirtualGpu(gpu, name, steps=steps)
        with recording:
            yield

    def predict(self, key: str) -> Said:
        """Put a question, before what it asks for is measured; press a button, or call `answer`."""
        question, chosen = self.lesson.asked(key), self._predicted.get(key)
        return question_view.put(question, chosen.key if chosen else "", lambda letter: self._choose(question, letter))

    def answer(self, key: str, choice: str) -> Said:
        """Predict, by the letter of a choice. Raises GpulabError for a letter that there is not."""
        question = self.lesson.asked(key)
        self._choose(question, choice)
        return question_view.noted(question, self._predicted[key])

    def _choose(self, question: Question, letter: str) -> None:
        self._predicted[question.key] = question.choice(letter)
        course_progress.predict(self.lesson.id, {key: choice.key for key, choice in self._predicted.items()})

    def reveal(self, key: str, measured: float | None = None, unit: str = "") -> Said:
        """What is right, beside what was predicted; works without a prediction too.

        `measured`: the value that decides, where the question leaves it to the measurement; it is shown either way.
        """
        question = self.lesson.asked(key)
        right = question.right_for(measured)
        if right is not None:
            self._resolved[key] = right
        told = "" if measured is None else figure(measured, unit)
        return question_view.resolved(question, right, self._predicted.get(key), told)

    def check(self, key: str, value: Any) -> Said:
        """Whether an answer is right, with the reason either way; None is not answered yet."""
        self._checked[key], told = question_view.checked(self.lesson.asked(key), value)
        return told

    def hint(self, key: str) -> Said:
        """The next of three hints to a question or a score: where to look, which counter, which line."""
        hints = next((par.hints for par in self.lesson.pars if par.key == key), None)
        hints = hints or next((each.hints for each in self.lesson.questions if each.key == key), None)
        self._hinted[key] = min(3, self._hinted.get(key, 0) + 1)
        return question_view.hint(key, hints, self._hinted[key])

    def same(self, before: Any, after: Any, equal: bool | float = True) -> Said:
        """Whether two variants gave the same result, as far as number formats allow; a claim after it leans on this.

        `equal`: a share of the largest value to allow instead.
        """
        try:
            found, problem = equality(before, after, equal), ""
        except RunError as error:
            found, problem = None, error.why
        self._differ = found is None
        return sameness(found, problem)

    def claim(
        self,
        sentence: str,
        holds: bool,
        *,
        before: float | None = None,
        after: float | None = None,
        unit: str = "",
        source: Sourced = MEASURED,
    ) -> Said:
        """Say in one line what an experiment shows, and whether it does so here.

        `before`, `after`, `unit`: the figures, shown and kept for the card ("%": shares of one). `source`: where they
        come from: MEASURED, COUNTED, SIMULATED, or the run they were read from. Where `same` found two results apart,
        no claim about them holds.
        """
        key = _NUMBER.sub("#", sentence)  # made again, it takes the place of the one before
        if self._differ:
            sentence, holds, self._differ = f"{sentence}: {UNEQUAL}", False, False
        told = Claim(sentence=sentence, holds=bool(holds), source=named(source), before=before, after=after, unit=unit)
        self._claims[key] = told
        return claimed(told)

    def score(self, key: str, count: int | None) -> Said:
        """A count beside par; None is not done yet."""
        return scored(self.lesson.par(key), count)

    def card(self) -> View:
        """What the lesson says, with the learner's own figures; `.save("card.html")` keeps it. It is noted as done."""
        answered = [self.lesson.asked(key) for key in self._resolved]
        predicted = [
            (one.ask, self._predicted[one.key].text if one.key in self._predicted else "not answered", right.text)
            for one, right in zip(answered, self._resolved.values(), strict=True)
        ]
        claims = tuple(self._claims.values())
        done = course_progress.Done(
            date=date.today().isoformat(),
            device=self.machine.device,
            predicted=len(self._predicted),
            foreseen=sum(self._resolved.get(key) == choice for key, choice in self._predicted.items()),
            right=sum(self._checked.values()),
            held=sum(each.holds for each in claims),
            claims=len(claims),
        )
        course_progress.remember(self.lesson.id, done)
        blocks = summary(self.lesson, claims, predicted, onward(self.lesson))
        return View(Sheet(f"gpulab: card of lesson {self.lesson.id}", blocks))


def _foretold(lesson: Lesson) -> dict[str, Choice]:
    """What was predicted in this lesson before the kernel was started again, as far as it is still asked."""
    letters, found = course_progress.predicted(lesson.id), {}
    for question in lesson.questions:
        choices = {choice.key: choice for choice in question.choices}
        if letters.get(question.key) in choices:
            found[question.key] = choices[letters[question.key]]
    return found
