"""Progress of a learner in the course and their predictions: a small file with one entry per lesson.

Its path is `path()`. The environment variable GPULAB_PROGRESS sets another path; with "off", nothing is stored. The
file contains counts, dates, the letters of answers and the folders of the course, but no code.

Each copy of the course has predictions of its own, by the folder of its notebooks, which is the working directory of
their kernels. Earlier versions stored one set for all copies: the first copy that asks for it takes it over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gpulab.locations import user_file
from gpulab.user_data.state_file import read_state, update_state

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
    entries = _section(read_state(path(), _parse), "done").items()
    return {id: results for id, entry in entries if (results := _lesson_results(entry)) is not None}


def read_predicted_letters(id: str) -> dict[str, str]:
    """Predicted letters of a lesson by question, in this copy of the course; they survive a restart of the kernel."""
    return _texts(_entry_of_copy("predicted", id))


def store_progress(id: str, done: LessonResults) -> Path | None:
    """Store the results of a lesson and return the path; None if nothing was stored.

    A failure to write is ignored: the lesson works without it.
    """
    return _store_entry("done", id, asdict(done))


def read_prediction_dates(id: str) -> dict[str, str]:
    """ISO dates of the predictions of a lesson by question; earlier versions stored none."""
    return _texts(_entry_of_copy("predicted_on", id))


def store_predictions(id: str, letters: Mapping[str, str], dates: Mapping[str, str] | None = None) -> Path | None:
    """Store predicted letters of a lesson by question and return the path; None if nothing was stored.

    `dates`: the ISO date of each.
    """
    if dates:
        _store_entry("predicted_on", _key_of_copy(id), dict(dates))
    return _store_entry("predicted", _key_of_copy(id), dict(letters))


def _key_of_copy(id: str) -> str:
    """The key of a lesson in the copy of the course in the working directory; the name alone if that was deleted."""
    try:
        return (Path.cwd() / id).as_posix()
    except OSError:
        return id


def _entry_of_copy(section: str, id: str) -> Any:
    """The entry of this copy of the course, after it has taken over one that belongs to no copy."""
    key = _key_of_copy(id)
    entries = _section(read_state(path(), _parse), section)
    if key in entries or id not in entries:
        return entries.get(key)
    update_state(path(), _parse, lambda content: _taken_over(content, id, key))
    return entries[id]  # also if the file cannot be written


def _taken_over(content: dict[str, Any], id: str, key: str) -> bytes:
    sections = {}
    for section in ("predicted", "predicted_on"):
        entries = dict(_section(content, section))
        if id in entries:
            entries.setdefault(key, entries.pop(id))
        sections[section] = entries
    return json.dumps({**content, **sections}, indent=1, sort_keys=True).encode()


def _store_entry(section: str, id: str, entry: Mapping[str, Any]) -> Path | None:
    """Set one entry; all others stay, also those that this version does not know."""

    def change(content: dict[str, Any]) -> bytes:
        new = {"done": {}, "predicted": {}, **content, section: {**_section(content, section), id: entry}}
        return json.dumps(new, indent=1, sort_keys=True).encode()

    file = path()
    return file if update_state(file, _parse, change) else None


def _parse(text: bytes) -> dict[str, Any]:
    content = json.loads(text) if text else {}
    if not isinstance(content, dict):
        raise ValueError("it does not contain a JSON object")
    return content


def _section(content: Mapping[str, Any], section: str) -> dict[str, Any]:
    entries = content.get(section)
    return entries if isinstance(entries, dict) else {}


def _texts(entry: Any) -> dict[str, str]:
    """The texts of an entry; {} if it is of another type."""
    if not isinstance(entry, dict):
        return {}
    return {str(key): text for key, text in entry.items() if isinstance(text, str)}


def _lesson_results(entry: Any) -> LessonResults | None:
    """The results in an entry; None if it is of another version or of other types."""
    types = {field.name: str if field.type == "str" else int for field in fields(LessonResults)}
    if not isinstance(entry, dict) or set(entry) != set(types):
        return None
    return LessonResults(**entry) if all(type(entry[name]) is kind for name, kind in types.items()) else None
