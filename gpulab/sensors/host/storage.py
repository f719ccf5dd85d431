"""The file system that holds a dataset's files, if the dataset has an attribute with their path."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import psutil

# Names of path attributes in torchvision, torchaudio and most user-defined datasets.
_PATH_ATTRIBUTES = ("root", "path", "folder", "directory", "data_dir", "root_dir", "img_dir", "image_dir", "data_path")
_LIST_ATTRIBUTES = ("files", "paths", "samples", "imgs", "images", "filenames")
_DATASET_ATTRIBUTES = ("dataset", "datasets", "data")  # Subset, ConcatDataset and other wrappers
_MAX_DEPTH = 3


def dataset_file_system(dataset: object) -> str | None:
    """The type of the file system that holds the dataset's files, e.g. "nfs4"; None without a known path.

    None of the dataset's code is called: only its stored attributes are read.
    """
    for path in _paths(dataset, _MAX_DEPTH):
        if _exists(path):
            return file_system_type(path)
    return None


def file_system_type(path: Path) -> str | None:
    """The type of the file system that holds a file or folder."""
    real = Path(os.path.realpath(path))
    mounts = _mounts(real.stat().st_dev if real.exists() else None)
    matches = [(len(mount.parts), at, kind) for at, (mount, kind) in enumerate(mounts) if real.is_relative_to(mount)]
    return max(matches)[2] if matches else None  # of two mounts on one folder, the later one is visible


@functools.lru_cache(maxsize=16)
def _mounts(_device: int | None) -> tuple[tuple[PurePath, str], ...]:
    """The mounted file systems and their types, read once per device: one that is mounted later is another device.

    Reading them takes a millisecond, and a program may make many loaders.
    """
    mounts = psutil.disk_partitions(all=True)
    return tuple((PurePath(mount.mountpoint), mount.fstype) for mount in mounts if mount.fstype)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not a path: too long, or contains a NUL
        return False


def _paths(dataset: object, depth: int) -> Iterator[Path]:
    try:
        values: Any = object.__getattribute__(dataset, "__dict__")
    except AttributeError:  # no attributes, or in slots
        return
    yield from (Path(values[name]) for name in _PATH_ATTRIBUTES if issubclass(type(values.get(name)), (str, PurePath)))
    for name in _LIST_ATTRIBUTES:
        first = _first(_first(values.get(name)))  # torchvision stores (file, class)
        if issubclass(type(first), (str, PurePath)):
            yield Path(first)
    if depth:
        for name in _DATASET_ATTRIBUTES:
            inner = _first(values.get(name))
            if inner is not None and not issubclass(type(inner), (str, bytes, int, float)):
                yield from _paths(inner, depth - 1)


def _first(value: Any) -> Any:
    """First item of a list or tuple; anything else unchanged."""
    return value[0] if type(value) in (list, tuple) and value else value
