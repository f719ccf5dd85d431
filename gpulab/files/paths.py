"""Find the files at a path: one file, the files of a directory, or those that match a pattern."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpulab.errors import TraceError
from gpulab.files.cache import without_sidecars
from gpulab.files.rank_order import natural_sort_key
from gpulab.store import SUFFIX
from gpulab.trace import nsight
from gpulab.wording import nearest_name, shorten

_SUFFIXES = (".json", ".json.gz", ".sqlite", SUFFIX)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # two letters at least: C:/ is a drive
_MAX_PATH = 300  # characters of a path in a message
_MAX_NAMES = 10_000  # of a folder, that are searched for a name like the one that is missing
_SETTINGS_BYTES = 16 * 2**20  # a JSON file that is not a trace is small


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """Files to be read."""

    name: str
    files: tuple[Path, ...]
    is_multiple: bool = False  # a directory or a pattern, regardless of the number of files


def find_files(path: str | os.PathLike[str]) -> FileSet:
    """Find the files at a path or pattern; `~` is the home folder. Raises TraceError if there is none."""
    text = os.fspath(path)
    try:
        location = Path(text)
        if not location.exists():
            location = Path(os.path.expanduser(text))  # noqa: PTH111, Path.expanduser raises if there is no such user
        if location.is_dir():
            return FileSet(name=str(location), files=_files_in_folder(location), is_multiple=True)
        if location.exists():
            return FileSet(name=str(location), files=(location,))
    except (OSError, ValueError) as error:  # too long, with a NUL character, or in a folder that may not be entered
        raise _path_error(text, error) from None
    if _SCHEME.match(text):
        raise _url_error(text)
    if glob.has_magic(text):
        return FileSet(name=text, files=_files_matching(str(location)), is_multiple=True)
    raise TraceError(
        f"There is no file {shorten(text, _MAX_PATH)!r}.",
        why="the path does not exist",
        fix=_near_file(location) or f"check the path; relative paths start from {_working_folder()}",
    )


def _near_file(path: Path) -> str:
    """Return "did you mean runs/before.gpulab?" with the file of its folder that is most like it; "" if none is."""
    try:
        near = nearest_name(path.name, (each.name for each in itertools.islice(path.parent.iterdir(), _MAX_NAMES)))
    except OSError:  # there is no such folder either
        return ""
    return "" if near is None else f"did you mean {shorten(str(path.with_name(near)), _MAX_PATH)}?"


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "the working folder, which no longer exists"


def _path_error(text: str, error: OSError | ValueError) -> TraceError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return TraceError(
        f"The path {shorten(text, _MAX_PATH)!r} cannot be opened.", why=why, fix="check the path and its permissions"
    )


def is_other_json(path: Path) -> bool:
    """Whether this is a small, valid JSON file without events, e.g. of settings, with a suffix like a trace."""
    try:
        if path.stat().st_size > _SETTINGS_BYTES:
            return False
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return not (isinstance(document, dict) and "traceEvents" in document)


def is_other_database(path: Path) -> bool:
    """Whether this is an SQLite database of something else than Nsight Systems."""
    return nsight.is_database(path) and not nsight.is_nsys_export(path)


def no_files_error(name: str) -> TraceError:
    """Error for a directory or a pattern without any trace or run."""
    folder = Path(name)
    if not folder.is_dir():
        return TraceError(
            f"No trace or run matches {name!r}.",
            why="only other JSON files match, without events",
            fix="check the pattern; torch.profiler's files are often named *.pt.trace.json or *.pt.trace.json.gz",
        )
    deeper = f'search its subfolders, too: gpulab.load("{glob.escape(folder.as_posix())}/**/*.json*")'
    other = "use the folder that torch.profiler wrote to, or a pattern such as gpulab.load('runs/*.pt.trace.json.gz')"
    return TraceError(
        f"There is no trace or run in {folder}.",
        why=f"it contains no file with a suitable suffix ({', '.join(_SUFFIXES)}) and content",
        fix=deeper if any(each.is_dir() and not each.name.startswith(".") for each in folder.iterdir()) else other,
    )


def _files_in_folder(folder: Path) -> tuple[Path, ...]:
    try:
        candidates = [path for path in folder.iterdir() if _is_candidate(path)]
    except OSError as error:
        raise TraceError(
            f"The directory {folder} cannot be read.", why=error.strerror or str(error), fix="check its permissions"
        ) from None
    files = without_sidecars(sorted(candidates, key=natural_sort_key))
    if not files and (reports := _reports_in_folder(folder)):
        return reports  # reading one says how to export it
    if not files:
        raise no_files_error(str(folder))
    return files


def _reports_in_folder(folder: Path) -> tuple[Path, ...]:
    """Reports in the format of Nsight Systems, which gpulab cannot read."""
    return tuple(sorted(path for path in folder.iterdir() if path.name.lower().endswith(nsight.REPORT_SUFFIXES)))


def _is_candidate(path: Path) -> bool:
    if not path.name.lower().endswith(_SUFFIXES) or path.name.startswith("."):
        return False
    return _is_file(path)


def _is_file(path: Path) -> bool:
    """Whether this is a file, or may be one: reading it then gives the reason why it cannot be read."""
    try:
        return path.is_file()
    except OSError:
        return True


def _files_matching(pattern: str) -> tuple[Path, ...]:
    # Not Path.glob, which rejects absolute patterns and finds hidden files. Links between folders may form a circle.
    matches = {os.path.realpath(each): Path(each) for each in glob.glob(pattern, recursive=True)}  # noqa: PTH207
    files = without_sidecars(sorted((path for path in matches.values() if _is_file(path)), key=natural_sort_key))
    if files:
        return files
    raise TraceError(
        f"No file matches {pattern!r}.",
        why=f"it matches {len(matches)} directories and no file" if matches else "nothing matches it",
        fix=f"check the pattern; relative paths start from {_working_folder()}, and ** searches subfolders",
    )


def _url_error(text: str) -> TraceError:
    url = re.sub(r"//[^/@]*@", "//", text.split("?")[0])  # credentials must not appear in a saved notebook
    return TraceError(
        f"{url} is not a file on this machine.",
        why="it is a URL, and gpulab does not open network connections",
        fix="download it first, then load the file with gpulab.load(...)",
    )
