"""What instructors need of every question: docs/answers.md, from the lessons.

    python tools/answers.py

Lists each question of each lesson with its right answer, and for every wrong answer the feedback that a learner gets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.lessons.course import lessons
from gpulab.lessons.lesson import Choice, Lesson, Question

PAGE = Path(__file__).resolve().parents[1] / "docs" / "answers.md"


def page() -> str:
    """Return the Markdown page."""
    parts = [
        "# Answers for instructors\n",
        "Learners: this page spoils the course. For every question of the notebooks: the right answer and its "
        "explanation, and what the wrong answers confuse. Where a measurement decides, the answer is the one of the "
        "machines on which the lesson was tried. `python tools/answers.py` generates this page; "
        "[teaching.md](teaching.md) says how to run the course in a class.\n",
    ]
    for one in lessons():
        parts += [f"## {one.number} {one.title} ({one.minutes} minutes)\n", *_lesson(one)]
    return "\n".join(parts)


def _lesson(one: Lesson) -> Iterator[str]:
    for question in one.questions:
        yield f"**{question.key}**: {_escaped(question.prompt)}\n"
        yield from _answers(question)
        if question.explanation:
            yield f"{_escaped(question.explanation)}\n"
    if one.targets:
        yield "Scores: " + "; ".join(
            f"{target.key}, at {'most' if target.lower_is_better else 'least'} {target.value:,} {target.unit}"
            for target in one.targets
        )
        yield ""


def _answers(question: Question) -> Iterator[str]:
    if not question.choices:
        yield "- the notebook checks a free answer, and says what is wrong with it\n"
        return
    right = question.right or question.expected
    for choice in question.choices:
        yield _choice(choice, choice.key == right)
    yield ""


def _choice(choice: Choice, right: bool) -> str:
    mark = " **(right)**" if right else ""
    feedback = f" {_escaped(choice.feedback)}" if choice.feedback and not right else ""
    return f"- {choice.key}) *{_escaped(choice.text).rstrip('.')}*.{mark}{feedback}"


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
