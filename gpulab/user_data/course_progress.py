"""How far a learner got, and what they predicted: a small file of theirs, one entry for each lesson.

Where it lies: `path()`. The environment variable GPULAB_PROGRESS names another file, or is "off": then nothing is
kept. It holds counts, dates and the letters of answers, nothing of the code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gpulab.user_data.locations import user_file

VARIABLE = "GPULAB_PROGRESS"


@dataclass(frozen=True, kw_only=True)
class Done:
    """What was done of a lesson, the last time."""

    date: str  # ISO
    device: str
    predicted: int  # questions answered before the measurement
    foreseen: int  # of them, those that came out so
    right: int  # checks
    held: int  # claims
    claims: int


def path() -> Path | None:
    """Where progress is kept; None where the user wants none kept."""
    return user_file(VARIABLE, "progress.json")


def known() -> dict[str, Done]:
    """What was done, by lesson; an entry that is none of ours is passed over."""
    wanted = {each.name for each in fields(Done)}
    return {id: Done(**each) for id, each in _kept("done").items() if isinstance(each, dict) and set(each) == wanted}


def predicted(id: str) -> dict[str, str]:
    """The letters that were predicted in a lesson, by question: also before the kernel was started again."""
    told = _kept("predicted").get(id)
    if not isinstance(told, dict):
        return {}
    return {str(key): letter for key, letter in told.items() if isinstance(letter, str)}


def remember(id: str, done: Done) -> Path | None:
    """Keep what was done of a lesson, and say where; None where nothing is kept.

    What cannot be written is not kept: no lesson is worth less for it.
    """
    return _keep("done", {**{name: asdict(each) for name, each in known().items()}, id: asdict(done)})


def predict(id: str, letters: Mapping[str, str]) -> Path | None:
    """Keep what is predicted in a lesson, letters by question, and say where; None where nothing is kept."""
    return _keep("predicted", {**_kept("predicted"), id: dict(letters)})


def _kept(what: str) -> dict[str, Any]:
    where = path()
    try:
        told = json.loads(where.read_text(encoding="utf-8")) if where else {}
    except (OSError, ValueError):
        return {}  # nothing was kept yet, or it cannot be read
    part = told.get(what) if isinstance(told, dict) else None
    return part if isinstance(part, dict) else {}


def _keep(what: str, value: Mapping[str, Any]) -> Path | None:
    where = path()
    if where is None:
        return None
    told = {**{each: _kept(each) for each in ("done", "predicted")}, what: value}
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
    except OSError:
        return None
    return where
