"""How a question is put, answered and resolved, as something to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpulab.lessons.answer import Said, said
from gpulab.lessons.lesson import Choice, Hints, Question
from gpulab.views.choices.choices import choosable
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.sheet import Block, Facts, Line, Section, Sheet, Verdict

_HINT = ("Hint 1", "Hint 2", "Hint 3")


@dataclass(frozen=True, eq=False, repr=False)
class Put(Said):
    """A question with its choices, which are buttons while somebody looks; its hints stay under them."""

    place: Callable[[str], str] = str  # makes buttons of the HTML of question and choices
    hints: tuple[Block, ...] = ()

    @cached_property
    def _html(self) -> str:
        hints = fragment(Sheet(f"{self.sheet.title}, hints", self.hints)) if self.hints else ""
        return self.place(fragment(self.sheet)) + hints


def put(question: Question, chosen: str, told: Callable[[str], None]) -> Put:
    """The question, before the measurement; `told` is given the letter of a button that is pressed."""
    asked = f"{question.key}: {question.ask}"
    steady = (Line(asked), *_choices(question))
    how = f'Answer with L.answer("{question.key}", "{question.choices[0].key}"), then run on.'
    choices = [(one.key, one.text) for one in question.choices]
    return Put(
        Sheet(f"gpulab: question {question.key}", (*steady, Line(how, soft=True))),
        steady=steady,
        place=lambda html: choosable(html, asked, choices, chosen, told),
        hints=folded(question.hints),
    )


def noted(question: Question, chosen: Choice) -> Said:
    """An answer was given; what is right comes with the measurement."""
    return said(f"gpulab: question {question.key}", (Line(f"{question.key}: you say {chosen.key}) {chosen.text}"),))


def resolved(question: Question, right: Choice | None, chosen: Choice | None, figure: str) -> Said:
    """What is right and why; then, apart from what CI compares, what was predicted and measured."""
    if right is None:
        steady: tuple[Block, ...] = (Line(f"{question.key}: nothing was measured yet; run the cell before this one"),)
        return said(f"gpulab: question {question.key}", steady)
    steady = (Line(f"{question.key}: {right.key}) {right.text}"), *_because(question))
    more: list[Block] = [Facts((("came out", figure),))] if figure else []
    return said(f"gpulab: question {question.key}", steady, (*more, *_foreseen(right, chosen)))


def _foreseen(right: Choice, chosen: Choice | None) -> tuple[Block, ...]:
    if chosen is None:
        return (Line("You predicted nothing.", soft=True),)
    good = chosen == right
    word = "so it is" if good else "not so"
    told = Verdict(f"You predicted {chosen.key}) {chosen.text.rstrip('.')}: {word}", word=word, good=good)
    return (told, Line(chosen.told)) if chosen.told else (told,)


def checked(question: Question, value: Any) -> tuple[bool, Said]:
    """Whether an answer is right, and what to say to it: the reason, also where it is wrong."""
    title = f"gpulab: question {question.key}"
    ask = (Line(f"{question.key}: {question.ask}"), *_choices(question))
    if value is None:
        line = Verdict(f"{question.key}: not answered yet", word="not answered yet")
        return False, said(title, (*ask, line), folded(question.hints))
    wrong, told = _wrong(question, value)
    if wrong:
        line = Verdict(f"{question.key}: not yet: {told}", word="not yet", good=False)
        return False, said(title, (*ask, line), folded(question.hints))
    line = Verdict(f"{question.key}: right. {told}".rstrip(), word="right", good=True)
    steady = (*ask, line, *_because(question))
    return True, said(title, steady)


def hint(question_key: str, hints: Hints | None, level: int) -> Said:
    """One of three hints, each telling more."""
    if hints is None:
        return said("gpulab: hint", (Line(f"{question_key}: there is no hint; the text above it has all it takes"),))
    return said("gpulab: hint", (Line(f"{question_key}, {_HINT[level - 1].lower()}: {hints[level - 1]}"),))


def _wrong(question: Question, value: Any) -> tuple[bool, str]:
    if question.judge is not None:
        problem = question.judge(value)
        return problem is not None, problem or ""
    chosen = question.choice(value)
    return chosen.key != question.right, chosen.told or ("" if chosen.key == question.right else chosen.text)


def _choices(question: Question) -> tuple[Block, ...]:
    return (Facts(tuple((one.key, one.text) for one in question.choices)),) if question.choices else ()


def _because(question: Question) -> tuple[Block, ...]:
    return (Line(question.because),) if question.because else ()


def folded(hints: Hints | None) -> tuple[Block, ...]:
    """Three hints, each to be opened when it is wanted; nothing where there are none."""
    return tuple(Section(title, (Line(text),), folded=True) for title, text in zip(_HINT, hints or (), strict=False))
