"""On which kind of file system a dataset's files lie, where the dataset says what it reads from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import psutil

# What datasets call the place their files lie at, in torchvision, torchaudio and most people's own.
_PLACES = ("root", "path", "folder", "directory", "data_dir", "root_dir", "img_dir", "image_dir", "data_path")
_LISTS = ("files", "paths", "samples", "imgs", "images", "filenames")
_INNER = ("dataset", "datasets", "data")  # Subset, ConcatDataset and their like hold another one
_DEEPEST = 3


def location(dataset: object) -> str | None:
    """The kind of file system the dataset's files lie on, as "nfs4"; None where it does not tell of any file.

    No code of the dataset's is called: what it holds is looked at, not asked for.
    """
    for path in _paths(dataset, _DEEPEST):
        if _exists(path):
            return file_system(path)
    return None


def file_system(path: Path) -> str | None:
    """The kind of file system a file or folder lies on."""
    real = PurePath(os.path.realpath(path))
    mounts = [(PurePath(mount.mountpoint), mount.fstype) for mount in psutil.disk_partitions(all=True) if mount.fstype]
    holding = [(len(mount.parts), at, kind) for at, (mount, kind) in enumerate(mounts) if real.is_relative_to(mount)]
    return max(holding)[2] if holding else None  # of two mounts on one folder the later one is seen


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that is no path: too long, or with a NUL in it
        return False


def _paths(dataset: object, depth: int) -> Iterator[Path]:
    try:
        values: Any = object.__getattribute__(dataset, "__dict__")
    except AttributeError:  # it keeps nothing of its own, or in slots
        return
    yield from (Path(values[name]) for name in _PLACES if isinstance(values.get(name), str | PurePath))
    for name in _LISTS:
        first = _first(_first(values.get(name)))  # torchvision keeps (file, class)
        if isinstance(first, str | PurePath):
            yield Path(first)
    if depth:
        for name in _INNER:
            inner = _first(values.get(name))
            if inner is not None and not isinstance(inner, str | bytes | int | float):
                yield from _paths(inner, depth - 1)


def _first(value: Any) -> Any:
    """The first of a list or tuple; anything else as it is."""
    return value[0] if type(value) in (list, tuple) and value else value
