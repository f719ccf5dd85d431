"""Two cards: what a notebook is about to run on, and what was learnt in it."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.lessons.lesson import Lesson
from gpulab.lessons.verdicts import Claim
from gpulab.run import Machine
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, Table
from gpulab.wording import count, number

Predicted = tuple[str, str, str]  # what was asked, what was predicted, what came out


def device_card(lesson: Lesson, machine: Machine, size: str, mode: str) -> tuple[Block, ...]:
    """What this notebook runs on here, and how large."""
    cores = "not known" if machine.cores_allowed is None else f"{number(machine.cores_allowed)} may be used"
    facts = [
        ("minutes", f"{lesson.minutes}"),
        ("device", machine.device),
        ("cores", cores),
        ("what is measured", mode),
        *([("without a GPU", lesson.without_gpu)] if lesson.without_gpu else []),
        ("size", f"{size}; GPULAB_SIZE=tiny, lab or full chooses another"),
        ("do before", ", ".join(lesson.before) or "nothing"),
    ]
    title = lesson.title if lesson.title.endswith("?") else f"{lesson.title}:"
    head = Answer(claim=f"{lesson.number} {title} {lesson.question}", leading=True)
    return head, Facts(tuple(facts)), Section("Afterwards you can", tuple(Line(each) for each in lesson.outcomes))


def summary(
    lesson: Lesson, claims: Sequence[Claim], predicted: Sequence[Predicted], onward: Sequence[str] = ()
) -> tuple[Block, ...]:
    """What the lesson says, the learner's own figures, and where to go from here."""
    told = (("symptom", lesson.symptom), ("signature", lesson.signature), ("fix", lesson.fix))
    facts = Facts(tuple((name, text) for name, text in (*told, ("when it does not help", lesson.not_when)) if text))
    held = sum(each.holds for each in claims)
    blocks: list[Block] = [
        Answer(claim=f"What you take with you from {lesson.number} {lesson.title}", leading=True),
        facts,
    ]
    if claims:
        rows = tuple(Row((each.sentence, "yes" if each.holds else "no", each.figures, each.source)) for each in claims)
        table = Table(header=("what was shown", "holds", "your figures", "source"), rows=rows, left=4)
        blocks.append(Section(f"{held} of {count(len(claims), 'claim')} held here", (table,)))
    if predicted:
        table = Table(header=("what was asked", "you predicted", "it was"), rows=tuple(map(Row, predicted)), left=3)
        blocks.append(Section("Your predictions", (table,)))
    if onward:
        blocks.append(Section("Go on with", tuple(map(Line, onward))))
    return tuple(blocks)
