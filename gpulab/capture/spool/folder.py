"""Spool files: where they are, and which of them belong to processes that have ended.

Listing the folder is enough to know: a file's name says whose it is.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from gpulab.locations import is_disabled, user_cache_folder
from gpulab.sensors.host.process_identity import ProcessIdentity, current_process

VARIABLE = "GPULAB_SPOOL"  # another folder, or "off"
SUFFIX = ".spool"
WINDOW_SUFFIX = ".trace.json"
DAMAGED_SUFFIX = ".damaged"
# Nobody here can tell whether a process of another machine has ended: its file has not changed for this long.
_FOREIGN_IDLE_S = 15 * 60
_MAX_AGE_S = 30 * 24 * 3600
_MAX_LEFTOVERS = 20


@dataclass(frozen=True)
class SpoolFiles:
    """The files of one recording, oldest segment first."""

    process: ProcessIdentity
    paths: tuple[Path, ...]
    modified_s: float  # UNIX time of the latest change
    windows: tuple[Path, ...] = ()  # traces of the profiler

    def remove(self) -> None:
        """Delete the files. Raises OSError."""
        for path in (*self.paths, *self.windows):
            path.unlink(missing_ok=True)


def spool_folder(other: Path | None = None) -> Path | None:
    """The folder of the files, or `other` instead; None if the user disabled them or has no cache folder."""
    if other is not None and not is_disabled(VARIABLE):
        return other
    return user_cache_folder(VARIABLE, "recordings")


def new_spool_stem() -> str:
    """Start of the file names of a new recording."""
    return f"{current_process()}-{secrets.token_hex(4)}"


def segment_name(stem: str, segment: int) -> str:
    """File name of one segment; names sort by segment."""
    return f"{stem}.{segment:06d}{SUFFIX}"


def window_name(stem: str, index: int) -> str:
    """File name of the events of the profiler's n-th window."""
    return f"{stem}.{index}{WINDOW_SUFFIX}"


def window_index(path: Path) -> int:
    """Number of the profiler's window in this file."""
    return int(path.name.removesuffix(WINDOW_SUFFIX).rpartition(".")[2])


def find_leftovers(folder: Path | None = None) -> tuple[SpoolFiles, ...]:
    """Files whose process has ended, oldest first; () if the folder cannot be read."""
    folder = folder or spool_folder()
    stems: dict[str, list[os.DirEntry[str]]] = defaultdict(list)
    try:
        with os.scandir(folder or os.devnull) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) or WINDOW_SUFFIX in entry.name:
                    stems[entry.name.partition(".")[0]].append(entry)
        recordings = [_spool_files(stem, entries_of_stem) for stem, entries_of_stem in stems.items()]
    except OSError:  # there is no folder yet, or a file was removed in this instant
        return ()
    leftovers = [files for files in recordings if files is not None and _is_leftover(files)]
    return tuple(sorted(leftovers, key=lambda files: files.modified_s))


def remove_old_leftovers(folder: Path) -> None:
    """Delete the files of killed processes that nobody recovered: old ones, and all but the latest few."""
    leftovers = find_leftovers(folder)
    oldest_s = time.time() - _MAX_AGE_S
    for index, files in enumerate(leftovers):
        if files.modified_s < oldest_s or index < len(leftovers) - _MAX_LEFTOVERS:
            files.remove()


def _spool_files(stem: str, entries: list[os.DirEntry[str]]) -> SpoolFiles | None:
    process = ProcessIdentity.parse(stem)
    if process is None:
        return None
    modified_s = max(entry.stat().st_mtime for entry in entries)
    segments = tuple(sorted(Path(entry.path) for entry in entries if entry.name.endswith(SUFFIX)))
    windows = tuple(sorted(Path(entry.path) for entry in entries if not entry.name.endswith(SUFFIX)))
    return SpoolFiles(process, segments, modified_s, windows)


def _is_leftover(files: SpoolFiles) -> bool:
    if files.process.is_local:
        return files.process.has_ended
    return time.time() - files.modified_s > _FOREIGN_IDLE_S
