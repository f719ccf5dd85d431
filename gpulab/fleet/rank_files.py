"""The files of a job, here or at a URL: list them, and open one of them where it is analysed."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpulab.errors import TraceError
from gpulab.files.paths import find_files
from gpulab.files.rank_order import natural_sort_key
from gpulab.store import SUFFIX
from gpulab.wording import shorten

PathOrUrl = str | os.PathLike[str]
_SUFFIXES = (".json", ".json.gz", SUFFIX)
# When a file changed, as file systems of fsspec call it; of an object store, the tag of its content will do.
_VERSIONS = ("mtime", "LastModified", "last_modified", "updated", "ETag", "etag", "created")


@dataclass(frozen=True)
class RankFile:
    """A file of one rank: path or URL, size, and when it changed ("" if unknown)."""

    path: str
    size_bytes: int = 0
    version: str = ""

    @property
    def is_local(self) -> bool:
        """Whether workers open it by its path."""
        return "://" not in self.path

    @property
    def name(self) -> str:
        """The name without folders."""
        return self.path.replace("\\", "/").rpartition("/")[2]


def find_rank_files(paths: PathOrUrl | Sequence[PathOrUrl], storage_options: Mapping[str, Any]) -> tuple[RankFile, ...]:
    """Return the files at a path, a directory, a pattern or a URL, or at several of them, in natural order.

    `storage_options`: what the file system of a URL needs, such as credentials. Raises TraceError if there is no file.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = {file.path: file for path in several for file in _files_at(os.fspath(path), storage_options)}
    if not files:
        raise TraceError(
            "There is no file to analyse.", why="the list of paths is empty", fix="give a directory, a pattern or a URL"
        )
    return tuple(sorted(files.values(), key=lambda file: natural_sort_key(Path(file.path))))


def _files_at(path: str, storage_options: Mapping[str, Any]) -> Iterator[RankFile]:
    if path.startswith("file://"):
        path = _file_system(path, storage_options)[1]
    if "://" in path:
        yield from _files_at_url(path, storage_options)
        return
    for file in find_files(path).files:
        try:
            status = file.stat()
        except OSError:  # reading it gives the reason
            yield RankFile(str(file.absolute()))
            continue
        yield RankFile(str(file.absolute()), status.st_size, str(status.st_mtime_ns))


def _files_at_url(url: str, storage_options: Mapping[str, Any]) -> Iterator[RankFile]:
    file_system, inner = _file_system(url, storage_options)
    try:
        if glob.has_magic(inner):
            entries = list(file_system.glob(inner, detail=True).values())
        else:
            entries = file_system.ls(inner, detail=True)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{_shown_url(url)} cannot be listed.",
            why="there is no such folder or file" if isinstance(error, FileNotFoundError) else str(error),
            fix="check the URL, and give credentials as storage_options={...}",
        ) from None
    files = [entry for entry in entries if entry["type"] == "file"]
    is_one = len(files) == 1 and files[0]["name"].strip("/") == inner.strip("/")
    files = [entry for entry in files if is_one or entry["name"].lower().endswith(_SUFFIXES)]
    if not files:
        raise TraceError(
            f"There is no trace or run at {_shown_url(url)}.",
            why=f"no file there ends with {', '.join(_SUFFIXES)}",
            fix="check the URL; ** searches subfolders",
        )
    for entry in files:
        version = next((str(entry[name]) for name in _VERSIONS if entry.get(name)), "")
        yield RankFile(file_system.unstrip_protocol(entry["name"]), int(entry.get("size") or 0), version)


def _shown_url(url: str) -> str:
    return shorten(re.sub(r"//[^/@]*@", "//", url.split("?")[0]), 300)  # without credentials


def _file_system(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. Raises TraceError if a library for it is missing."""
    import fsspec

    try:
        file_system, inner = fsspec.core.url_to_fs(url, **storage_options)
    except (ImportError, ValueError) as error:
        scheme = url.partition("://")[0]
        raise TraceError(
            f"{scheme}:// cannot be opened.",
            why=str(error),
            fix="install the library for it on the client and the workers, such as s3fs for s3:// or gcsfs for gs://",
        ) from None
    return file_system, inner


@contextmanager
def local_path(file: RankFile, storage_options: Mapping[str, Any]) -> Iterator[Path]:
    """Give a local path of the file: its own, or that of a copy that is deleted at the end.

    Raises TraceError or OSError if the file cannot be copied.
    """
    if file.is_local:
        yield Path(file.path)
        return
    file_system, inner = _file_system(file.path, storage_options)
    with TemporaryDirectory(prefix="gpulab-") as folder:
        target = Path(folder, file.name)
        file_system.get_file(inner, str(target))
        yield target
