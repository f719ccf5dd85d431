"""Predictions measured on this machine: a small file of the user with one JSON object per line.

Its path is `path()`. The environment variable GPULAB_HISTORY sets another path; with "off", nothing is read or written.
The file contains times and names of changes, but no code.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

from gpulab.locations import user_file
from gpulab.replay.history import MeasuredPrediction

VARIABLE = "GPULAB_HISTORY"
MAX_LINES = 2000  # older ones are ignored, because machines change


def path() -> Path | None:
    """Path of the file; None if the user disabled it."""
    return user_file(VARIABLE, "predictions.jsonl")


def read_measured_predictions(device: str | None = None) -> tuple[MeasuredPrediction, ...]:
    """Stored predictions, oldest first, of one device or of all; invalid lines are skipped."""
    file = path()
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file else []
    except OSError:
        return ()  # there is no file yet, or it cannot be read
    predictions = [past for line in lines[-MAX_LINES:] if (past := _read(line)) is not None]
    return tuple(past for past in predictions if device is None or past.device == device)


def store_prediction(past: MeasuredPrediction) -> Path | None:
    """Store a prediction and return the path; None if nothing was stored. A failure to write is ignored."""
    file = path()
    if file is None or past in read_measured_predictions():
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(past)) + "\n")
    except OSError:
        return None
    return file


def _read(line: str) -> MeasuredPrediction | None:
    try:
        entry = json.loads(line)
        past = MeasuredPrediction(**{field.name: entry[field.name] for field in fields(MeasuredPrediction)})
    except (ValueError, KeyError, TypeError):
        return None
    times = (past.step_ns, past.predicted_ns, past.best_ns, past.worst_ns, past.measured_ns)
    texts = (past.kind, past.device, past.date)
    # A step time is positive and below an hour.
    is_valid = all(isinstance(ns, int) and 0 < ns < 3600 * 10**9 for ns in times) and all(
        isinstance(text, str) for text in texts
    )
    return past if is_valid else None
