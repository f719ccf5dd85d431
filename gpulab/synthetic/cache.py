"""The cache folder of generated data, with a size limit: least recently used data are removed first.

`path()` is its location; the environment variable GPULAB_CACHE overrides it. GPULAB_CACHE_MB is its limit.
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
DEFAULT_LIMIT_MB = 500
_READY = ".ready"  # written last: a folder without it is incomplete


def path() -> Path:
    """Return the cache folder."""
    folder = os.environ.get(VARIABLE, "").strip()
    return Path(folder).expanduser() if folder else user_cache_path("gpulab", appauthor=False) / "datasets"


def limit_bytes() -> int:
    """Return the size limit. Raises GpulabError if the variable is not a number."""
    setting = os.environ.get(LIMIT_VARIABLE, "").strip() or str(DEFAULT_LIMIT_MB)
    if not setting.isdigit():
        raise GpulabError(
            "The size limit of the cache is invalid.",
            why=f"{LIMIT_VARIABLE} is {setting!r}, which is not a whole number of megabytes",
            fix=f"set it to a whole number, or unset it to use {DEFAULT_LIMIT_MB}",
        )
    return int(setting) * 1_000_000


def cached_folder(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder with this name; call `fill` to fill it if it does not exist yet.

    If two processes need the same data, both generate it, and the first result is kept. Raises GpulabError if the cache
    cannot be written.
    """
    folder = path() / name
    if (folder / _READY).exists():
        os.utime(folder / _READY)
        return folder
    try:
        path().mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=path()))
        try:
            fill(unfinished)
            (unfinished / _READY).touch()
            _publish(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as problem:
        raise GpulabError(
            f"The data {name!r} cannot be written to the cache.",
            why=f"{path()}: {problem.strerror or type(problem).__name__}",
            fix=f"set {VARIABLE} to a writable folder",
        ) from problem
    _trim(keep=folder)
    return folder


def clear() -> None:
    """Delete all cached data; they are generated again when needed."""
    shutil.rmtree(path(), ignore_errors=True)


def size_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def _publish(unfinished: Path, folder: Path) -> None:
    if folder.exists() and not (folder / _READY).exists():
        shutil.rmtree(folder, ignore_errors=True)
    try:
        unfinished.rename(folder)
    except OSError:
        if not (folder / _READY).exists():  # fail, unless another process finished first
            raise


def _trim(keep: Path) -> None:
    """Remove least recently used data until the rest is within the limit; keep the new data."""
    folders = [each.parent for each in path().glob(f"*/{_READY}")]
    folders.sort(key=lambda folder: (folder / _READY).stat().st_mtime)
    sizes = {each: size_bytes(each) for each in folders}
    over = sum(sizes.values()) - limit_bytes()
    for folder in folders:
        if over <= 0:
            return
        if folder != keep:
            over -= sizes[folder]
            shutil.rmtree(folder, ignore_errors=True)
