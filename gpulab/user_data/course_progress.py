"""Progress of a learner in the course and their predictions: a small file with one entry per lesson.

Its path is `path()`. The environment variable GPULAB_PROGRESS sets another path; with "off", nothing is stored. The
file contains counts, dates and the letters of answers, but no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gpulab.locations import user_file

VARIABLE = "GPULAB_PROGRESS"


@dataclass(frozen=True, kw_only=True)
class LessonResults:
    """Results of a lesson, the last time it was done."""

    date: str  # ISO
    device: str
    predicted: int  # questions answered before the measurement
    foreseen: int  # those of them whose answer was correct
    right: int  # checks passed
    held: int  # claims confirmed
    claims: int


def path() -> Path | None:
    """Path of the progress file; None if the user disabled it."""
    return user_file(VARIABLE, "progress.json")


def load_progress() -> dict[str, LessonResults]:
    """Results by lesson; invalid entries are skipped."""
    names = {field.name for field in fields(LessonResults)}
    entries = _read_section("done").items()
    return {id: LessonResults(**entry) for id, entry in entries if isinstance(entry, dict) and set(entry) == names}


def read_predicted_letters(id: str) -> dict[str, str]:
    """Predicted letters of a lesson by question; they survive a restart of the kernel."""
    letters = _read_section("predicted").get(id)
    if not isinstance(letters, dict):
        return {}
    return {str(key): letter for key, letter in letters.items() if isinstance(letter, str)}


def store_progress(id: str, done: LessonResults) -> Path | None:
    """Store the results of a lesson and return the path; None if nothing was stored.

    A failure to write is ignored: the lesson works without it.
    """
    return _write_section("done", {**{name: asdict(each) for name, each in load_progress().items()}, id: asdict(done)})


def store_predictions(id: str, letters: Mapping[str, str]) -> Path | None:
    """Store predicted letters of a lesson by question and return the path; None if nothing was stored."""
    return _write_section("predicted", {**_read_section("predicted"), id: dict(letters)})


def _read_section(section: str) -> dict[str, Any]:
    file = path()
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):
        return {}  # there is no file yet, or it cannot be read
    entries = content.get(section) if isinstance(content, dict) else None
    return entries if isinstance(entries, dict) else {}


def _write_section(section: str, value: Mapping[str, Any]) -> Path | None:
    file = path()
    if file is None:
        return None
    content = {**{name: _read_section(name) for name in ("done", "predicted")}, section: value}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
    except OSError:
        return None
    return file
