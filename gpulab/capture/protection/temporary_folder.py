"""A temporary folder whose name says which process uses it, so that what a killed process left is removed later."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpulab.deferred_signals import DeferredSignals
from gpulab.sensors.host.process_identity import ProcessIdentity, current_process

PREFIX = "gpulab-"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder for the block; the first one of a process removes those of killed processes."""
    with DeferredSignals(again=True):  # the first call of a process creates a file and removes it
        parent = tempfile.gettempdir()
    remove_leftovers(parent)
    folder: tempfile.TemporaryDirectory[str] | None = None
    try:
        with DeferredSignals(again=True):
            folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{current_process()}-")
        yield Path(folder.name)
    finally:
        try:
            _remove(folder)
        finally:  # a second call does nothing, unless a signal handler raised before the first one began
            _remove(folder)


def _remove(folder: tempfile.TemporaryDirectory[str] | None) -> None:
    with DeferredSignals(again=True):
        if folder is not None:
            folder.cleanup()


@functools.lru_cache(maxsize=1)
def remove_leftovers(parent: str) -> None:
    """Remove the temporary folders of this user's processes that have ended, once per process; errors are ignored."""
    try:
        with os.scandir(parent) as entries:
            leftovers = [entry.path for entry in entries if entry.name.startswith(PREFIX) and _is_leftover(entry)]
    except OSError:
        return
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)


def _is_leftover(entry: os.DirEntry[str]) -> bool:
    process = ProcessIdentity.parse(entry.name.removeprefix(PREFIX))
    if process is None or not process.has_ended:
        return False
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    # Others may create folders of any name there.
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "getuid") or status.st_uid == os.getuid())
