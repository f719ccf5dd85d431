"""The index of the course: lessons with their questions and minutes, the paths through them, and the progress."""

from __future__ import annotations

from gpulab.lessons.course import PATHS, lesson, lessons
from gpulab.lessons.lesson import Lesson
from gpulab.user_data import course_progress
from gpulab.views.sheet.sheet import Answer, Row, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import count


def lesson_table(links: str = "") -> str:
    """Return all lessons as a Markdown table; `links` is the path prefix of the links to their notebooks."""
    rows = []
    for item in lessons():
        first = ", ".join(id.partition("_")[0] for id in item.prerequisites) or "-"
        title = f"[{item.number} {item.title}]({links}{item.id}.ipynb)"
        rows.append(f"| {title} | {item.question} | {item.minutes} | {first} |")
    return "\n".join(("| lesson | question | minutes | prerequisites |", "|---|---|---|---|", *rows))


def path_list(links: str = "") -> str:
    """Return the learning paths as a Markdown list, each with its minutes."""
    lines = []
    for name, numbers in PATHS.items():
        steps = [lesson(number) for number in numbers]
        linked = ", ".join(f"[{step.number}]({links}{step.id}.ipynb)" for step in steps)
        lines.append(f"- **{name}** ({sum(step.minutes for step in steps)} minutes): {linked}")
    return "\n".join(lines)


def next_lessons(current: Lesson) -> tuple[str, ...]:
    """Describe the next lesson on each path that contains this lesson, and the paths that end with it."""
    next_on_paths: dict[str, list[str]] = {}
    ends = []
    for name, numbers in PATHS.items():
        if current.number in numbers[:-1]:
            next_on_paths.setdefault(numbers[numbers.index(current.number) + 1], []).append(name)
        elif current.number == numbers[-1]:
            ends.append(f'This was the last lesson of the path "{name}".')
    lines = []
    for number, names in next_on_paths.items():
        following, on_paths = lesson(number), ", ".join(f'"{name}"' for name in names)
        title = f"{following.number} {following.title}"
        lines.append(f"{title} ({following.minutes} minutes; path {on_paths}): {following.question}")
    return (*lines, *ends)


def progress() -> View:
    """Show which lessons are done, as stored on this machine; end a cell with it."""
    done_lessons = course_progress.load_progress()
    rows = []
    for item in lessons():
        done = done_lessons.get(item.id)
        cells = ("-", "-", "-")
        if done:
            cells = (done.date, f"{done.foreseen} of {done.predicted}", f"{done.held} of {done.claims}")
        rows.append(Row((f"{item.number} {item.title}", str(item.minutes), *cells)))
    finished = sum(item.id in done_lessons for item in lessons())
    left = sum(item.minutes for item in lessons() if item.id not in done_lessons)
    summary = f"{finished} of {count(len(rows), 'lesson')} done, {left} minutes left."
    header = ("lesson", "minutes", "done on", "right predictions", "claims that held")
    return View(
        Sheet("gpulab: progress", (Answer(claim=summary, leading=True), TableBlock(header=header, rows=tuple(rows))))
    )
