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
from gpulab.user_data.state_file import read_state, set_aside, update_state
from gpulab.wording import count

VARIABLE = "GPULAB_HISTORY"
MAX_LINES = 2000  # older ones are ignored, because machines change


def path() -> Path | None:
    """Path of the file; None if the user disabled it."""
    return user_file(VARIABLE, "predictions.jsonl")


def read_measured_predictions(device: str | None = None) -> tuple[MeasuredPrediction, ...]:
    """Stored predictions, oldest first, of one device or of all; invalid lines are skipped."""
    lines = read_state(path(), bytes.splitlines)
    predictions = [past for line in lines[-MAX_LINES:] if (past := _read(line)) is not None]
    return tuple(past for past in predictions if device is None or past.device == device)


def store_prediction(past: MeasuredPrediction) -> Path | None:
    """Store a prediction and return the path; None if nothing was stored. A failure to write is ignored.

    Lines that are not JSON are moved to a file with the suffix `.damaged`, and reported.
    """
    file = path()

    def change(lines: list[bytes]) -> bytes | None:
        if past in map(_read, lines[-MAX_LINES:]):
            return None
        damaged = [line for line in lines if _is_damaged(line)]
        if damaged and file is not None:
            set_aside(file, b"\n".join(damaged) + b"\n", f"{count(len(damaged), 'line')} without JSON")
        new = [*(line for line in lines if not _is_damaged(line)), json.dumps(asdict(past)).encode()]
        return b"\n".join(new) + b"\n"

    return file if update_state(file, bytes.splitlines, change) else None


def _is_damaged(line: bytes) -> bool:
    try:
        json.loads(line.strip() or b"0")
    except (ValueError, RecursionError):
        return True
    return False


def _read(line: bytes) -> MeasuredPrediction | None:
    try:
        entry = json.loads(line)
        past = MeasuredPrediction(**{field.name: entry[field.name] for field in fields(MeasuredPrediction)})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    times = (past.step_ns, past.predicted_ns, past.best_ns, past.worst_ns, past.measured_ns)
    texts = (past.kind, past.device, past.date)
    # A step time is positive and below an hour.
    is_valid = all(isinstance(ns, int) and 0 < ns < 3600 * 10**9 for ns in times) and all(
        isinstance(text, str) for text in texts
    )
    return past if is_valid else None
