"""What lies at a path: one file, the files of a directory, or those that match a pattern."""

from __future__ import annotations

import glob
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpulab.errors import TraceError
from gpulab.files.cache import without_sidecars
from gpulab.files.rank_order import by_name
from gpulab.store import SUFFIX

_NAMED_LIKE = (".json", ".json.gz", SUFFIX)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # two letters at least: C:/ is a drive
_SETTINGS_BYTES = 16 * 2**20  # a JSON file that is no trace is small


@dataclass(frozen=True, kw_only=True)
class Place:
    """Files to read."""

    name: str
    files: tuple[Path, ...]
    many: bool = False  # a directory or a pattern, however many files that is


def find(path: str | os.PathLike[str]) -> Place:
    """The files at a path or pattern; `~` is the home folder. Raises TraceError where there is none."""
    given = os.fspath(path)
    here = Path(given)
    if not here.exists():
        here = Path(os.path.expanduser(given))  # noqa: PTH111, Path.expanduser raises where there is no such user
    if here.is_dir():
        return Place(name=str(here), files=_inside(here), many=True)
    if here.exists():
        return Place(name=str(here), files=(here,))
    if _SCHEME.match(given):
        raise _remote(given)
    if glob.has_magic(given):
        return Place(name=given, files=_matching(str(here)), many=True)
    raise TraceError(
        f"There is no file {given!r}.",
        why="the path does not exist",
        fix=f"check the path; relative ones start from {Path.cwd()}",
    )


def is_other_json(path: Path) -> bool:
    """Whether this is whole, small JSON without events: a file of settings, say, that only ends as traces do."""
    try:
        if path.stat().st_size > _SETTINGS_BYTES:
            return False
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return not (isinstance(document, dict) and "traceEvents" in document)


def nothing_in(place: str) -> TraceError:
    """The error for a directory or a pattern without a trace or a run."""
    folder = Path(place)
    if not folder.is_dir():
        return TraceError(
            f"No trace and no run matches {place!r}.",
            why="what it matches is other JSON, without events",
            fix="check the pattern; torch.profiler's files are often called *.pt.trace.json or *.pt.trace.json.gz",
        )
    deeper = f'look into its folders, too: gpulab.load("{glob.escape(folder.as_posix())}/**/*.json*")'
    other = "give the folder that torch.profiler wrote to, or a pattern such as gpulab.load('runs/*.pt.trace.json.gz')"
    return TraceError(
        f"There is no trace and no run in {folder}.",
        why=f"no file in it is one by name ({', '.join(_NAMED_LIKE)}) and content",
        fix=deeper if any(each.is_dir() and not each.name.startswith(".") for each in folder.iterdir()) else other,
    )


def _inside(folder: Path) -> tuple[Path, ...]:
    try:
        found = [path for path in folder.iterdir() if _counts(path)]
    except OSError as error:
        raise TraceError(
            f"The directory {folder} cannot be read.", why=error.strerror or str(error), fix="check its permissions"
        ) from None
    files = without_sidecars(sorted(found, key=by_name))
    if not files:
        raise nothing_in(str(folder))
    return files


def _counts(path: Path) -> bool:
    return path.name.lower().endswith(_NAMED_LIKE) and not path.name.startswith(".") and path.is_file()


def _matching(pattern: str) -> tuple[Path, ...]:
    # Not Path.glob: it takes no absolute pattern, and finds hidden files. Folders may be linked in a circle.
    found = {os.path.realpath(each): Path(each) for each in glob.glob(pattern, recursive=True)}  # noqa: PTH207
    files = without_sidecars(sorted((path for path in found.values() if path.is_file()), key=by_name))
    if files:
        return files
    raise TraceError(
        f"No file matches {pattern!r}.",
        why=f"it matches {len(found)} directories and no file" if found else "nothing has a name like that",
        fix=f"check the pattern; relative ones start from {Path.cwd()}, and ** searches deeper folders",
    )


def _remote(given: str) -> TraceError:
    shown = re.sub(r"//[^/@]*@", "//", given.split("?")[0])  # what lets someone in is not for a saved notebook
    return TraceError(
        f"{shown} is not a file on this machine.",
        why="it is a URL, and gpulab opens no connections",
        fix="download it first, then gpulab.load(...) the file",
    )
