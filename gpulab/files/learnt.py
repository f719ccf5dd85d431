"""How far a learner got: a small file of theirs, one entry for each lesson.

Where it lies: `path()`. The environment variable GPULAB_PROGRESS names another file, or is "off": then nothing is
kept. It holds counts and dates, nothing of the code.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from platformdirs import user_data_path

VARIABLE = "GPULAB_PROGRESS"
OFF = ("off", "0", "no")


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
    asked = os.environ.get(VARIABLE, "").strip()
    if asked.lower() in OFF:
        return None
    return Path(asked).expanduser() if asked else user_data_path("gpulab", appauthor=False) / "progress.json"


def known() -> dict[str, Done]:
    """What is kept, by lesson; an entry that is none of ours is passed over."""
    where = path()
    try:
        told = json.loads(where.read_text(encoding="utf-8")) if where else {}
    except (OSError, ValueError):
        return {}  # nothing was kept yet, or it cannot be read
    wanted = {each.name for each in fields(Done)}
    if not isinstance(told, dict):
        return {}
    return {id: Done(**each) for id, each in told.items() if isinstance(each, dict) and set(each) == wanted}


def remember(id: str, done: Done) -> Path | None:
    """Keep it, and say where; None where none is kept. What cannot be written is not kept: no lesson is worth less."""
    where = path()
    if where is None:
        return None
    told = {name: asdict(each) for name, each in {**known(), id: done}.items()}
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(json.dumps(told, indent=1, sort_keys=True), encoding="utf-8")
    except OSError:
        return None
    return where
