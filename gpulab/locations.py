"""Locations of the user's files: an environment variable sets another path, or "off" to store nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_OFF = ("off", "0", "no")


def is_disabled(variable: str) -> bool:
    """Whether this environment variable disables storing."""
    return os.environ.get(variable, "").strip().lower() in _OFF


def user_file(variable: str, name: str) -> Path | None:
    """The file set by the environment variable, by default `name` in the user's data folder; None if disabled."""
    from platformdirs import user_data_path

    return _location(variable, lambda: user_data_path("gpulab", appauthor=False) / name)


def user_cache_folder(variable: str, name: str) -> Path | None:
    """The folder set by the environment variable, by default `name` in the user's cache folder; None if disabled."""
    from platformdirs import user_cache_path

    return _location(variable, lambda: user_cache_path("gpulab", appauthor=False) / name)


def _location(variable: str, default: Callable[[], Path]) -> Path | None:
    """The path; None if the user disabled it, or has no home."""
    if is_disabled(variable):
        return None
    path = os.environ.get(variable, "").strip()
    try:
        location = Path(path).expanduser() if path else default()
    except RuntimeError:  # no home
        return None
    return location if path or location.is_absolute() else None  # "~" would be a folder here
