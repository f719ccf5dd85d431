"""Where the user's files lie: an environment variable names another place, or is "off": then nothing is kept."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_data_path

_OFF = ("off", "0", "no")


def is_off(variable: str) -> bool:
    """Whether the user wants nothing kept of what this environment variable is about."""
    return os.environ.get(variable, "").strip().lower() in _OFF


def user_file(variable: str, name: str) -> Path | None:
    """The file that the environment variable names, by default `name` in the user's data folder; None if it is off."""
    if is_off(variable):
        return None
    path = os.environ.get(variable, "").strip()
    return Path(path).expanduser() if path else user_data_path("gpulab", appauthor=False) / name
