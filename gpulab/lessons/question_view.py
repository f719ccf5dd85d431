"""Views of a question: the question itself, the answer that was recorded, the solution, and hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpulab.lessons.lesson import Choice, Hints, Question
from gpulab.lessons.stable_view import LessonView, lesson_view, with_code
from gpulab.views.choices.choices import choice_buttons
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.sheet import Block, Facts, Line, Section, Sheet, Verdict

OnChoice = Callable[[str], str]  # returns what to say about the letter of a pressed button; "" for nothing
_HINT = ("Hint 1", "Hint 2", "Hint 3")


@dataclass(frozen=True, eq=False, repr=False)
class QuestionView(LessonView):
    """A question with its choices, which are buttons in a live notebook; the hints stay below them."""

    add_buttons: Callable[[str], str] = str  # turns the HTML of question and choices into buttons
    hints: tuple[Block, ...] = ()

    @cached_property
    def _html(self) -> str:
        hints = fragment(Sheet(f"{self.sheet.title}, hints", self.hints)) if self.hints else ""
        return with_code(self.add_buttons(fragment(self.sheet)) + hints)


def ask_view(question: Question, chosen: str, earlier: str | None, on_choice: OnChoice) -> QuestionView:
    """Show a question before its measurement; `on_choice` is called with the letter of a pressed button.

    `earlier`: the date of an answer from an earlier session, "" if it is unknown; None if there is no such answer.
    """
    instruction = f'Answer with L.answer("{question.key}", "{question.choices[0].key}"), then continue.'
    date = f" on {earlier}" if earlier else " in an earlier session"
    status = "" if earlier is None else f"You chose {chosen}{date}. Choose again, or run the cells below."
    steady = _question(question)
    return QuestionView(
        Sheet(f"gpulab: question {question.key}", (*steady, Line(instruction, soft=True))),
        stable=steady,
        add_buttons=_buttons(question, chosen, status, on_choice),
        hints=hint_sections(question.hints),
    )


def _question(question: Question) -> tuple[Block, ...]:
    return (Line(f"{question.key}: {question.prompt}"), *_choices(question))


def _buttons(question: Question, chosen: str, status: str, on_choice: OnChoice) -> Callable[[str], str]:
    prompt, choices = f"{question.key}: {question.prompt}", [(choice.key, choice.text) for choice in question.choices]
    return lambda html: choice_buttons(html, prompt, choices, chosen, on_choice, status)


def confirmation_view(question: Question, chosen: Choice) -> LessonView:
    """Confirm an answer; the solution follows after the measurement."""
    line = f"{question.key}: your answer is {chosen.key}) {chosen.text}"
    return lesson_view(f"gpulab: question {question.key}", (Line(line),))


def solution_view(question: Question, right: Choice | None, chosen: Choice | None, figure: str) -> LessonView:
    """Show the right answer with its explanation; only in the HTML, also the prediction and the measured value."""
    if right is None:
        steady: tuple[Block, ...] = (
            Line(f"{question.key}: not measured yet: write what the cell above asks for, and run it"),
        )
        return lesson_view(f"gpulab: question {question.key}", steady)
    steady = (Line(f"{question.key}: {right.key}) {right.text}"), *_explanation(question))
    more: list[Block] = [Facts((("result", figure),))] if figure else []
    return lesson_view(f"gpulab: question {question.key}", steady, (*more, *_prediction(right, chosen)))


def unexpected_view(question: Question, measured: Choice, figure: str) -> LessonView:
    """Show that a measurement gives another answer than it should; the explanation would contradict it."""
    line = f"{question.key}: not decided. The cells above give {measured.key}) {measured.text}"
    advice = (
        "That is not what this experiment should give. Write the code that the cells above wait for, or check what you "
        "wrote, and run them again. If they are right, your machine differs from those on which the lesson was tried."
    )
    return lesson_view(
        f"gpulab: question {question.key}", (Line(line),), (Facts((("result", figure),)), Line(advice, soft=True))
    )


def _prediction(right: Choice, chosen: Choice | None) -> tuple[Block, ...]:
    if chosen is None:
        return (Line("You made no prediction.", soft=True),)
    good = chosen == right
    word = "right" if good else "wrong"
    verdict = Verdict(f"You predicted {chosen.key}) {chosen.text.rstrip('.')}: {word}", result=word, good=good)
    return (verdict, Line(chosen.feedback)) if chosen.feedback else (verdict,)


def check_answer(question: Question, value: Any, on_choice: OnChoice) -> tuple[bool, LessonView]:
    """Return whether an answer is right, and a view that gives the reason in either case.

    Without an answer, choices are buttons; `on_choice` is called with the letter of the pressed one.
    """
    title = f"gpulab: question {question.key}"
    prompt = _question(question)
    if value is None:
        line = Verdict(f"{question.key}: not answered yet", result="not answered yet")
        if not question.choices:
            return False, lesson_view(title, (*prompt, line), hint_sections(question.hints))
        return False, QuestionView(
            Sheet(title, (*prompt, line)),
            stable=(*prompt, line),
            add_buttons=_buttons(question, "", "Choose one.", on_choice),
            hints=hint_sections(question.hints),
        )
    wrong, feedback = _judge(question, value)
    if wrong:
        line = Verdict(f"{question.key}: not right yet: {feedback}", result="not right yet", good=False)
        return False, lesson_view(title, (*prompt, line), hint_sections(question.hints))
    line = Verdict(f"{question.key}: right. {feedback}".rstrip(), result="right", good=True)
    steady = (*prompt, line, *_explanation(question))
    return True, lesson_view(title, steady)


def choice_feedback(question: Question, letter: str) -> tuple[bool, str]:
    """Return whether the choice of this letter is right, and what to say about it."""
    wrong, feedback = _judge(question, letter)
    if wrong:
        return False, f"{letter}: not right yet. {feedback}"
    return True, " ".join(filter(None, (f"{letter}: right.", feedback, question.explanation)))


def hint_view(question_key: str, hints: Hints | None, level: int) -> LessonView:
    """Show one of three hints; each says more than the one before."""
    if hints is None:
        line = f"{question_key}: there is no hint; the text above it contains all you need"
        return lesson_view("gpulab: hint", (Line(line),))
    return lesson_view("gpulab: hint", (Line(f"{question_key}, {_HINT[level - 1].lower()}: {hints[level - 1]}"),))


def _judge(question: Question, value: Any) -> tuple[bool, str]:
    """Return whether an answer is wrong, and the feedback on it."""
    if question.find_problem is not None:
        problem = question.find_problem(value)
        return problem is not None, problem or ""
    chosen = question.choice(value)
    return chosen.key != question.right, chosen.feedback or ("" if chosen.key == question.right else chosen.text)


def _choices(question: Question) -> tuple[Block, ...]:
    choices = tuple((choice.key, choice.text) for choice in question.choices)
    return (Facts(choices),) if choices else ()


def _explanation(question: Question) -> tuple[Block, ...]:
    return (Line(question.explanation),) if question.explanation else ()


def hint_sections(hints: Hints | None) -> tuple[Block, ...]:
    """Return the three hints as collapsed sections; nothing if there are no hints."""
    return tuple(Section(title, (Line(text),), folded=True) for title, text in zip(_HINT, hints or (), strict=False))
