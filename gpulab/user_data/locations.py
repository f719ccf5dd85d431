"""Locations of the user's files: an environment variable sets another path, or "off" to store nothing."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

_OFF = ("off", "0", "no")


def is_disabled(variable: str) -> bool:
    """Whether this environment variable disables storing."""
    return os.environ.get(variable, "").strip().lower() in _OFF


def user_file(variable: str, name: str) -> Path | None:
    """The file set by the environment variable, by default `name` in the user's data folder; None if disabled."""
    if is_disabled(variable):
        return None
    path = os.environ.get(variable, "").strip()
    return Path(path).expanduser() if path else user_data_path("gpulab", appauthor=False) / name
