"""A run wherever a function takes one: the run itself, its name in `gpulab.runs`, or the path of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

from gpulab import store
from gpulab.capture.run_registry import runs
from gpulab.errors import RunError
from gpulab.files import load
from gpulab.run import Run
from gpulab.wording import count

RunName: TypeAlias = str | os.PathLike[str]  # a name in `gpulab.runs`, or the path of a file
RunLike: TypeAlias = Run | RunName
Other = TypeVar("Other")
_SUFFIXES = (".gpulab", ".json", ".gz", ".sqlite")  # a name that ends with one is a path, also if there is no such file


@overload
def find_run(subject: RunName) -> Run: ...
@overload
def find_run(subject: Other) -> Other: ...
def find_run(subject: Any) -> Any:
    """Return the run of this name or in this file; anything else, such as a run, as it is.

    Raises RunError if the name or the file is not that of one run.
    """
    if not isinstance(subject, str | os.PathLike):
        return subject
    if subject in runs:  # not its ranks, which are runs of their own
        return runs[str(subject)]
    run = find_runs(subject)
    if isinstance(run, Run):
        return run
    raise RunError(
        f"{os.fspath(subject)!r} is not one run.",
        why=f"it contains {count(len(run), 'run')}",
        fix="load all of them with gpulab.load(...), and choose one",
    )


def find_runs(subject: RunName) -> Run | Sequence[Run]:
    """Return the run of this name, or its ranks if it started some, or what is in this file, folder or pattern.

    Raises RunError with the names that exist, TraceError or StoreError for a file that cannot be read.
    """
    if isinstance(subject, str) and (subject in runs or not _is_path(subject)):
        ranks = runs.with_ranks(subject)
        return ranks[0] if len(ranks) == 1 else ranks
    loaded: Run | Sequence[Run] = load(subject)
    return loaded


def find_ranks(subject: RunName | Sequence[RunLike]) -> Sequence[Run]:
    """Return the runs of these names or files, or those of one name, file or folder."""
    ranks = replace_names(subject)
    return (ranks,) if isinstance(ranks, Run) else ranks


@overload
def replace_names(subject: RunLike | Sequence[RunLike]) -> Run | Sequence[Run]: ...
@overload
def replace_names(subject: Other) -> Other: ...
def replace_names(subject: Any) -> Any:
    """Return the runs in place of names and paths, also inside a list or a tuple; anything else as it is."""
    if isinstance(subject, str | os.PathLike):
        return find_runs(subject)
    if isinstance(subject, list | tuple) and any(isinstance(run, str | os.PathLike) for run in subject):
        return [find_run(run) for run in subject]
    return subject


def save(run: RunLike, path: str | os.PathLike[str]) -> Path:
    """Write a run to one `.gpulab` file, atomically; returns the path. Raises StoreError if this fails."""
    return store.save(find_run(run), path)


def is_run_name(text: str) -> bool:
    """Return whether a run has this name, or whether it is the path of a file."""
    return text in runs or _is_path(text)


def _is_path(text: str) -> bool:
    if text.endswith(_SUFFIXES) or any(character in text for character in f"{os.sep}*"):
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
