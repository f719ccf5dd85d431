"""Versions of PyTorch with which the virtual GPU works on this machine: empty files in the user's cache folder.

Only successes are stored: a failure may have other causes, so the next process tries again.
"""

from __future__ import annotations

import re
from pathlib import Path

from platformdirs import user_cache_path

from gpulab.locations import is_disabled
from gpulab.user_data.predictions import VARIABLE

_FOLDER = "virtual_gpu"


def folder() -> Path | None:
    """Folder of the files; None if the user disabled storing, as for predictions."""
    if is_disabled(VARIABLE):
        return None
    return user_cache_path("gpulab", appauthor=False) / _FOLDER


def has_succeeded(versions: tuple[str, ...]) -> bool:
    """Whether the self-test succeeded on this machine with exactly these versions."""
    location = folder()
    try:
        return location is not None and (location / _file_name(versions)).is_file()
    except OSError:
        return False  # the folder cannot be read


def store_success(versions: tuple[str, ...]) -> Path | None:
    """Store that the self-test succeeded with these versions and return the path; None if nothing was stored."""
    location = folder()
    if location is None:
        return None
    try:
        location.mkdir(parents=True, exist_ok=True)
        (location / _file_name(versions)).touch()
    except OSError:
        return None
    return location / _file_name(versions)


def _file_name(versions: tuple[str, ...]) -> str:
    return re.sub(r"[^\w.+]", "_", "-".join(versions))
