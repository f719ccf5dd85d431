"""The course at a glance: which lesson answers what, how long it takes, and the paths through it."""

from __future__ import annotations

from gpulab.lessons.course import PATHS, lesson, lessons
from gpulab.lessons.lesson import Lesson
from gpulab.user_data import course_progress
from gpulab.views.sheet.sheet import Answer, Row, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.wording import count


def table(links: str = "") -> str:
    """All lessons as a Markdown table; `links` is the folder that their notebooks are linked in."""
    rows = [
        f"| [{one.number} {one.title}]({links}{one.id}.ipynb) | {one.question} | {one.minutes} | "
        f"{', '.join(each.partition('_')[0] for each in one.before) or '-'} |"
        for one in lessons()
    ]
    return "\n".join(("| lesson | it answers | minutes | after |", "|---|---|---|---|", *rows))


def paths(links: str = "") -> str:
    """The paths as a Markdown list, each with its minutes."""
    lines = []
    for name, numbers in PATHS.items():
        steps = [lesson(number) for number in numbers]
        told = ", ".join(f"[{one.number}]({links}{one.id}.ipynb)" for one in steps)
        lines.append(f"- **{name}** ({sum(one.minutes for one in steps)} minutes): {told}")
    return "\n".join(lines)


def onward(one: Lesson) -> tuple[str, ...]:
    """The lessons that come after this one on its paths, each with its minutes, and the paths that end with it."""
    after: dict[str, list[str]] = {}
    ends = []
    for name, numbers in PATHS.items():
        if one.number in numbers[:-1]:
            after.setdefault(numbers[numbers.index(one.number) + 1], []).append(name)
        elif one.number == numbers[-1]:
            ends.append(f'This was the last lesson of "{name}".')
    steps = [(lesson(number), ", ".join(f'"{name}"' for name in names)) for number, names in after.items()]
    told = [f"{each.number} {each.title} ({each.minutes} minutes; path {on}): {each.question}" for each, on in steps]
    return (*told, *ends)


def progress() -> View:
    """How far you got, by what is kept on this machine; end a cell with it."""
    known = course_progress.known()
    rows = []
    for one in lessons():
        done = known.get(one.id)
        told = (
            (done.date, f"{done.foreseen} of {done.predicted}", f"{done.held} of {done.claims}") if done else ("-",) * 3
        )
        rows.append(Row((f"{one.number} {one.title}", str(one.minutes), *told)))
    finished = sum(one.id in known for one in lessons())
    left = sum(one.minutes for one in lessons() if one.id not in known)
    head = f"{finished} of {count(len(rows), 'lesson')} done, {left} minutes to go."
    header = ("lesson", "minutes", "done on", "foreseen", "claims that held")
    return View(Sheet("gpulab: progress", (Answer(claim=head, leading=True), Table(header=header, rows=tuple(rows)))))
