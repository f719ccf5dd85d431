"""Which paragraph of which article is taught where, and which of their statements are tested, with the result.

    python tools/coverage.py

writes docs/coverage.md from docs/coverage.tsv, and docs/statements.md from docs/statements.tsv, with the lessons.

A line of the table names places as ARTICLE:LINE or ARTICLE:FIRST-LAST (articles as numbered in `ARTICLES`), what is
said there, and the experiments that teach it; "-" for what teaches nothing. A range covers every line in it that is
not blank.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.lessons.course import lesson
from tools.claims import strength_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
ARTICLES = (
    "Seven reasons for low GPU utilisation (Spanish)",
    "GPU utilisation while a model trains (Chinese)",
    "Seven reasons for low GPU utilisation (Korean)",
    "Maximise GPU utilisation for model training (English)",
    "How to raise the utilisation of your GPU (Portuguese)",
)
_LANGUAGES = ("Spanish", "Chinese", "Korean", "English", "Portuguese")
_PLACE = re.compile(r"(\d):(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Place:
    """Lines of an article, the first and the last counted."""

    article: int
    first: int
    last: int


@dataclass(frozen=True)
class Statement:
    """A statement of articles, where they make it, the experiments that test it, and what they show."""

    places: tuple[Place, ...]
    statement: str
    experiments: tuple[str, ...]
    result: str


@dataclass(frozen=True)
class Taught:
    """A topic, where articles speak of it, and the experiments that teach it."""

    places: tuple[Place, ...]
    topic: str
    experiments: tuple[str, ...]


def topics(path: Path = DOCS / "coverage.tsv") -> tuple[Taught, ...]:
    """Return the table. Raises ValueError for an invalid line."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        places, topic, experiments = line.split("\t")
        ids = () if experiments == "-" else tuple(experiments.split())
        rows.append(Taught(tuple(map(_place, places.split())), topic, ids))
    return tuple(rows)


def statements(path: Path = DOCS / "statements.tsv") -> tuple[Statement, ...]:
    """Return the table of statements. Raises ValueError for an invalid line."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        places, statement, experiments, result = line.split("\t")
        rows.append(Statement(tuple(map(_place, places.split())), statement, tuple(experiments.split()), result))
    return tuple(rows)


def _place(text: str) -> Place:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no place in an article; write 3:47-51")
    return Place(int(match[1]), int(match[2]), int(match[3] or match[2]))


def unassigned(article: int, text: str) -> list[int]:
    """Return the numbers (from 1) of the article's lines that are not blank and in no topic."""
    covered = {
        line
        for each in topics()
        for place in each.places
        if place.article == article
        for line in range(place.first, place.last + 1)
    }
    return [number for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in covered]


def page() -> str:
    """Return the Markdown page: the topics by article."""
    parts = [
        "# Coverage of the articles by the course\n",
        "For each paragraph of five articles on low GPU utilisation: the experiments that teach or test it, and the "
        "strength of their evidence on a machine without a GPU: *live* (measured or counted while the notebook runs), "
        "*recorded*, *modelled* (a virtual GPU or a simulation) or *mentioned* (no claim tests it). "
        "`python tools/coverage.py` generates it from `coverage.tsv` and the lessons.\n",
    ]
    for number, title in enumerate(ARTICLES):
        parts += [f"## {title}\n", "| lines | topic | experiments |", "|---|---|---|", *_rows(number), ""]
    return "\n".join(parts)


def statements_page() -> str:
    """Return the Markdown page of the statements that the course tests."""
    parts = [
        "# Statements of the articles, tested\n",
        "Statements of five articles on low GPU utilisation (in our words; article and line in the first column) that "
        "the course tests instead of repeating: the experiments with the strength of their evidence on a machine "
        "without a GPU, and the result. `python tools/coverage.py` generates this page from `statements.tsv` and the "
        "lessons.\n",
        "| where | statement | experiments | result |",
        "|---|---|---|---|",
    ]
    for one in statements():
        places = ", ".join(f"{_LANGUAGES[place.article]} {_lines(place)}" for place in one.places)
        parts.append(f"| {places} | {one.statement} | {', '.join(map(_linked, one.experiments))} | {one.result} |")
    return "\n".join(parts) + "\n"


def _rows(article: int) -> Iterator[str]:
    rows = [(place, topic) for topic in topics() for place in topic.places if place.article == article]
    for place, topic in sorted(rows, key=lambda pair: pair[0].first):
        yield f"| {_lines(place)} | {topic.topic} | {', '.join(map(_linked, topic.experiments)) or 'left out'} |"


def _lines(place: Place) -> str:
    return str(place.first) if place.first == place.last else f"{place.first}-{place.last}"


def _linked(experiment: str) -> str:
    lesson_id = lesson(experiment.partition(".")[0]).id
    return f"[{experiment}](../notebooks/{lesson_id}.ipynb) {strength_of(experiment)}"


if __name__ == "__main__":
    (DOCS / "coverage.md").write_text(page(), encoding="utf-8")
    (DOCS / "statements.md").write_text(statements_page(), encoding="utf-8")
