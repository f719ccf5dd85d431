"""Two cards: the hardware and settings at the start of a notebook, and the summary at its end."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.lessons.lesson import Lesson
from gpulab.lessons.verdicts import Claim
from gpulab.run import Machine
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, TableBlock
from gpulab.wording import count

PredictionRow = tuple[str, str, str]  # the question, the prediction, the right answer


def device_card(lesson: Lesson, machine: Machine, size: str, mode: str) -> tuple[Block, ...]:
    """Describe the lesson, the device it runs on here, and its size."""
    cores = "an unknown number of cores" if machine.cores_allowed is None else count(machine.cores_allowed, "core")
    facts = (("device", f"{machine.device}, {cores}"),)
    details = (
        ("measurements", mode),
        *([("without a GPU", lesson.without_gpu)] if lesson.without_gpu else []),
        ("minutes", f"{lesson.minutes}"),
        ("prerequisites", ", ".join(lesson.prerequisites) or "nothing"),
        ("data size", f"{size}; set GPULAB_SIZE to tiny, lab or full to change it"),
    )
    title = lesson.title if lesson.title.endswith("?") else f"{lesson.title}:"
    head = Answer(claim=f"{lesson.number} {title} {lesson.question}", leading=True)
    goals = tuple(Line(outcome) for outcome in lesson.outcomes)
    about = Section("About this lesson", (Facts(details),), folded=True)
    return head, Facts(facts), Section("After this lesson you can", goals, folded=True), about


def summary(
    lesson: Lesson, claims: Sequence[Claim], predicted: Sequence[PredictionRow], next_lessons: Sequence[str] = ()
) -> tuple[Block, ...]:
    """Sum up a lesson: its main points, the learner's claims and predictions, and the next lessons."""
    points = (
        ("symptom", lesson.symptom),
        ("signature", lesson.signature),
        ("fix", lesson.fix),
        ("when the fix does not help", lesson.limits),
    )
    facts = Facts(tuple((name, text) for name, text in points if text))
    held_count = sum(claim.holds for claim in claims)
    blocks: list[Block] = [Answer(claim=f"Summary of {lesson.number} {lesson.title}", leading=True), facts]
    if claims:
        rows = tuple(Row((claim.sentence, claim.verdict.lower(), claim.values, claim.source)) for claim in claims)
        table = TableBlock(header=("claim", "verdict", "your results", "source"), rows=rows, text_columns=4)
        blocks.append(Section(f"{held_count} of {count(len(claims), 'claim')} held here", (table,)))
    if predicted:
        header = ("question", "your prediction", "right answer")
        table = TableBlock(header=header, rows=tuple(map(Row, predicted)), text_columns=3)
        blocks.append(Section("Your predictions", (table,)))
    if next_lessons:
        blocks.append(Section("Next lessons", tuple(map(Line, next_lessons))))
    return tuple(blocks)
