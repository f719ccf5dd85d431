"""The folder in which made data is kept, and its limit: what was used longest ago goes first.

Where it lies: `path()`; the environment variable GPULAB_CACHE names another. GPULAB_CACHE_MB is its limit.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

from gpulab.errors import GpulabError

VARIABLE, LIMIT_VARIABLE = "GPULAB_CACHE", "GPULAB_CACHE_MB"
USUAL_LIMIT_MB = 500
_READY = ".ready"  # written last: a folder without it was left half made


def path() -> Path:
    """Where data is kept."""
    asked = os.environ.get(VARIABLE, "").strip()
    return Path(asked).expanduser() if asked else user_cache_path("gpulab", appauthor=False) / "datasets"


def limit_bytes() -> int:
    """How much may lie there. Raises GpulabError where the variable is no number."""
    asked = os.environ.get(LIMIT_VARIABLE, "").strip() or str(USUAL_LIMIT_MB)
    if not asked.isdigit():
        raise GpulabError(
            "The limit of the cache is not known.",
            why=f"{LIMIT_VARIABLE} is {asked!r}, which is no whole number of megabytes",
            fix=f"set it to one, or leave it out for {USUAL_LIMIT_MB}",
        )
    return int(asked) * 1_000_000


def made(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of this name, as `make` filled it: now, or an earlier time.

    Two processes that want the same make it side by side, and the first to be ready is kept. Raises GpulabError where
    the cache cannot be written.
    """
    wanted = path() / name
    if (wanted / _READY).exists():
        os.utime(wanted / _READY)
        return wanted
    try:
        path().mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=path()))
        try:
            make(half)
            (half / _READY).touch()
            _moved(half, wanted)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    except OSError as problem:
        raise GpulabError(
            f"The data {name!r} cannot be kept.",
            why=f"{path()}: {problem.strerror or type(problem).__name__}",
            fix=f"set {VARIABLE} to a folder that you may write to",
        ) from problem
    _trim(keep=wanted)
    return wanted


def clear() -> None:
    """Remove all that was made; it comes again when it is asked for."""
    shutil.rmtree(path(), ignore_errors=True)


def size_bytes(folder: Path) -> int:
    """What the files in a folder take."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def _moved(half: Path, wanted: Path) -> None:
    if wanted.exists() and not (wanted / _READY).exists():
        shutil.rmtree(wanted, ignore_errors=True)
    try:
        half.rename(wanted)
    except OSError:
        if not (wanted / _READY).exists():  # unless another process was ready first
            raise


def _trim(keep: Path) -> None:
    """Remove what was used longest ago until the rest is within the limit; what was just made stays."""
    folders = [each.parent for each in path().glob(f"*/{_READY}")]
    folders.sort(key=lambda each: (each / _READY).stat().st_mtime)
    sizes = {each: size_bytes(each) for each in folders}
    over = sum(sizes.values()) - limit_bytes()
    for folder in folders:
        if over <= 0:
            return
        if folder != keep:
            over -= sizes[folder]
            shutil.rmtree(folder, ignore_errors=True)
