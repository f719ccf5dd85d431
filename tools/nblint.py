"""What may not be in a notebook of the course, and what must be: each rule gives a sentence for what is wrong."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat

from gpulab.errors import GpulabError
from gpulab.lessons import regions
from gpulab.lessons.course import lesson, lessons
from gpulab.lessons.lesson import Lesson

ROLES = (
    *(
        "device",
        "setup",
        "given",
        "predict",
        "measure",
        "reveal",
        "check",
        "worked",
        "same",
        "claim",
        "exercise",
        "score",
    ),
    "card",
)
OTHER_TAGS = ("nbval-ignore-output",)
MOST_BYTES = 200_000
LEAST_STRICT = 6  # cells whose output is compared and not empty
LEAST_STRICT_FRAC = 0.4  # of the code cells with output
UNWANTED = {
    "input(": "asks for typed input, which stops Run All",
    "!pip": "installs something",
    "%pip": "installs something",
    "%%capture": "hides what a learner should see",
    "http://": "needs a network",
    "https://": "needs a network",
    "/home/": "names a path of one machine",
    "/work/": "names a path of one machine",
    "/tmp/": "names a path of one machine",
    "execution_count": "depends on how often cells were run",
}

Rule = Callable[[Any, Lesson], Iterator[str]]


def problems(path: Path) -> list[str]:
    """What is wrong with a notebook, a sentence each."""
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    try:
        nbformat.validate(notebook)
        course_lesson = lesson(path.stem)
    except (nbformat.ValidationError, GpulabError) as problem:
        return [str(problem)]
    messages = [] if len(text.encode()) <= MOST_BYTES else [f"{len(text.encode()):,} bytes, {MOST_BYTES:,} are allowed"]
    if text != json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n":
        messages.append("is not in canonical form: run tools/notebooks.py build")
    return [*messages, *(each for rule in RULES for each in rule(notebook, course_lesson))]


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _role(cell: Any) -> str:
    return str((cell.metadata.get("tags") or [""])[0])


def headed(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """One h1, first; then headings in order."""
    heads = [
        (len(heading[1]), heading[2])
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for heading in re.finditer(r"^(#+) (.+)$", cell.source, re.MULTILINE)
    ]
    if [level for level, _ in heads].count(1) != 1 or heads[0][0] != 1:
        yield "has not exactly one h1, at its beginning"
    for (level, _), (next_level, text) in itertools.pairwise(heads):
        if next_level > level + 1:
            yield f"skips a heading level before {text!r}"


def kernel(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """The kernel every Jupyter has, and no state of widgets."""
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernel is not python3"
    if "widgets" in notebook.metadata:
        yield "holds the state of widgets"


def tagged(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """A role first, nothing unknown; what no two runs share is not compared."""
    for place, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code":
            continue
        if not tags or tags[0] not in ROLES:
            yield f"cell {place} has no role; the roles are {', '.join(ROLES)}"
        yield from (f"cell {place} has the tag {tag!r}" for tag in tags[1:] if tag not in OTHER_TAGS)
        if tags[:1] != ["device"] and "nbval-ignore-output" in tags and tags[0] not in ("measure", "card"):
            yield f"cell {place} is a {tags[0]} and is not compared"


def counted(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """Every code cell was run once, in order."""
    counts = [cell.execution_count for cell in _code(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield "its cells were not run once, in order"


def worded(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """Nothing that stops Run All, needs a network, or hides; no marks that nbval or IPython would misread."""
    for place, cell in enumerate(notebook.cells):
        source = cell.source
        code = source if cell.cell_type == "code" else ""
        yield from (f"cell {place} {why}: {pattern}" for pattern, why in UNWANTED.items() if pattern in code)
        if cell.cell_type != "code":
            continue
        if re.search(r"#\s*NBVAL", source):
            yield f"cell {place} has an NBVAL comment; use a tag"
        if "\n%%" in source:
            yield f"cell {place} has something above its cell magic, which then does nothing"
        if source.rstrip().endswith(";"):
            yield f"cell {place} ends in a semicolon, which nbval does not know"
        try:
            if not all(regions.tasks(source)):
                yield f"cell {place} has a blank without a task"
        except GpulabError as problem:
            yield f"cell {place}: {problem}"
        outputs = json.dumps(cell.get("outputs", []))
        yield from (
            f"the output of cell {place} names a path: {path}" for path in ("/home/", "/work/") if path in outputs
        )


def strict(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """Enough of it is compared to mean something."""
    with_output = [cell for cell in _code(notebook) if cell.outputs]
    compared = [cell for cell in with_output if "nbval-ignore-output" not in cell.metadata.get("tags", [])]
    if len(compared) < LEAST_STRICT:
        yield f"only {len(compared)} cells are compared; {LEAST_STRICT} is the least"
    if with_output and len(compared) / len(with_output) < LEAST_STRICT_FRAC:
        yield f"only {len(compared)} of {len(with_output)} cells with output are compared"


def ordered(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """Predict before the first measurement; a claim after the last; a device card first and a summary at the end."""
    roles = [_role(cell) for cell in _code(notebook)]
    if roles[:1] != ["device"] or roles[-1:] != ["card"]:
        yield "does not begin with the device card and end with the summary card"
    if "measure" in roles and "predict" not in roles[: roles.index("measure")]:
        yield "measures before anything was predicted"
    if "claim" not in roles:
        yield "claims nothing"
    elif "measure" in roles and len(roles) - roles[::-1].index("measure") > len(roles) - roles[::-1].index("claim"):
        yield "claims nothing after its last measurement"


def claims(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """One claim a cell, which holds in the stored output, and blanks to fill in."""
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        count = cell.source.count("L.claim(")
        if (_role(cell) == "claim") != (count > 0) or count > 1:
            yield f"cell {place} has {count} claims and is a {_role(cell)}"
        if "FAILS  " in json.dumps(cell.get("outputs", [])) or "DIFFERENT  " in json.dumps(cell.get("outputs", [])):
            yield f"cell {place} failed when it was built"
    if not any(re.search(r"^\s*# </blank>", cell.source, re.MULTILINE) for cell in _code(notebook)):
        yield "has no blank to fill in"


def linked(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """Links to notebooks that exist, pictures with words."""
    ids = {one.id for one in lessons()}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for name in re.findall(r"\]\(([\w-]+)\.ipynb\)", cell.source):
                if name not in ids and name != "index":
                    yield f"links to {name}.ipynb, which there is not"
            if "![](" in cell.source:
                yield "has a picture without words"


def complete(notebook: Any, course_lesson: Lesson) -> Iterator[str]:
    """All that the lesson says it has: experiments in headings, questions asked, scores given."""
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    code = "\n".join(cell.source for cell in _code(notebook))
    for one in course_lesson.experiments:
        if not re.search(rf"^#+ .*\b{re.escape(one.number)}\b", prose, re.MULTILINE):
            yield f"has no heading for experiment {one.number}"
    headings = re.findall(rf"^#+ .*?\b({re.escape(course_lesson.id[:2])}\.\d+)\b", prose, re.MULTILINE)
    numbers = [int(number.partition(".")[2]) for number in dict.fromkeys(headings)]
    if numbers != sorted(numbers):
        yield f"numbers its experiments in another order than they appear in: {numbers}"
    keys = (*(each.key for each in course_lesson.questions), *(each.key for each in course_lesson.targets))
    yield from (f"never asks {key!r}" for key in keys if f'"{key}"' not in code)
    if not (
        course_lesson.title
        and course_lesson.outcomes
        and course_lesson.symptom
        and course_lesson.signature
        and course_lesson.fix
        and course_lesson.limits
    ):
        yield "its lesson has no outcomes, symptom, signature, fix or not_when"


RULES: tuple[Rule, ...] = (*(headed, kernel, tagged, counted, worded, strict, ordered, claims, linked, complete),)
