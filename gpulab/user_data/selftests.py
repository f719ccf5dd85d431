"""Which versions of PyTorch the virtual GPU was found to work on here: one empty file each in the user's cache folder.

Only what worked is kept: a failure may have been the machine's, and is tried again by the next process.
"""

from __future__ import annotations

import re
from pathlib import Path

from platformdirs import user_cache_path

from gpulab.user_data.locations import is_off
from gpulab.user_data.predictions import VARIABLE

_FOLDER = "virtual_gpu"


def folder() -> Path | None:
    """Where it is kept; None where the user wants nothing kept, as with predictions."""
    if is_off(VARIABLE):
        return None
    return user_cache_path("gpulab", appauthor=False) / _FOLDER


def worked(versions: tuple[str, ...]) -> bool:
    """Whether it worked here with exactly these versions."""
    where = folder()
    try:
        return where is not None and (where / _name(versions)).is_file()
    except OSError:
        return False  # it cannot be read: then nothing is known


def keep(versions: tuple[str, ...]) -> Path | None:
    """Note that it works with these versions, and say where; None where nothing is kept or can be written."""
    where = folder()
    if where is None:
        return None
    try:
        where.mkdir(parents=True, exist_ok=True)
        (where / _name(versions)).touch()
    except OSError:
        return None
    return where / _name(versions)


def _name(versions: tuple[str, ...]) -> str:
    return re.sub(r"[^\w.+]", "_", "-".join(versions))
