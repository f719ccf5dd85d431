"""Predictions that were measured on this machine: a small file of the user's, one line of JSON each.

Where it lies: `path()`. The environment variable GPULAB_HISTORY names another file, or is "off": then nothing is read
and nothing written. It holds times and the names of changes, nothing of the code.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

from gpulab.replay.history import MeasuredPrediction
from gpulab.user_data.locations import user_file

VARIABLE = "GPULAB_HISTORY"
MOST_LINES = 2000  # older ones are not read: a machine changes


def path() -> Path | None:
    """Where predictions are kept; None where the user wants none kept."""
    return user_file(VARIABLE, "predictions.jsonl")


def known(device: str | None = None) -> tuple[MeasuredPrediction, ...]:
    """What was kept, the oldest first, of one device or of all; a line that is none of ours is passed over."""
    where = path()
    try:
        lines = where.read_text(encoding="utf-8", errors="replace").splitlines() if where else []
    except OSError:
        return ()  # none was kept yet, or it cannot be read: then nothing was learned
    told = [past for line in lines[-MOST_LINES:] if (past := _read(line)) is not None]
    return tuple(past for past in told if device is None or past.device == device)


def remember(past: MeasuredPrediction) -> Path | None:
    """Keep one, and say where; None where none is kept. What cannot be written is not kept: no run is worth less."""
    where = path()
    if where is None or past in known():
        return None
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with where.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(past)) + "\n")
    except OSError:
        return None
    return where


def _read(line: str) -> MeasuredPrediction | None:
    try:
        told = json.loads(line)
        past = MeasuredPrediction(**{field.name: told[field.name] for field in fields(MeasuredPrediction)})
    except (ValueError, KeyError, TypeError):
        return None
    times = (past.step_ns, past.predicted_ns, past.best_ns, past.worst_ns, past.measured_ns)
    words = (past.kind, past.device, past.date)
    # A time is positive and below an hour: anything else is no step of a training loop.
    good = all(isinstance(ns, int) and 0 < ns < 3600 * 10**9 for ns in times) and all(
        isinstance(word, str) for word in words
    )
    return past if good else None
