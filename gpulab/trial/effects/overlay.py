"""Where a trial of a script keeps what the script changes: files that it writes are new ones in a folder of the trial.

As with an overlay file system, the script sees its own changes: a file that it wrote or removed is a new or missing one
for it, and the real one stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gpulab.trial.effects.program_guard import REFUSAL, RefusedChangeError

_MOST_LINKS = 40  # as Linux
_MAX_COPY_BYTES = 2 * 10**9  # of a file that the script changes in place
# Bound here, because a trial replaces those of the modules.
_lstat, _stat, _mkdir, _listdir, _readlink, _open = os.lstat, os.stat, os.mkdir, os.listdir, os.readlink, open


class Overlay:
    """The files as a script sees them. Paths are absolute; `upper`: where the changed ones are.

    `folder`: an empty one, for the changed files. `direct`: folders in which the script writes the real files.
    """

    def __init__(self, folder: Path, direct: Iterable[Path]) -> None:
        self.changed: list[str] = []  # the names of the first files that the script wrote or removed
        self._upper = str(folder)
        self._direct = {text for path in direct for text in (str(path), os.path.realpath(path))}
        self._removed = set[str]()  # real files and folders that are no longer there for the script

    def logical(self, path: Any, folder: int | None = None) -> str:
        """Return the absolute path that the script means. `folder`: an open one, to which the path is relative."""
        text = os.fsdecode(path)
        if folder is not None and not text.startswith("/"):
            text = f"{self.of_descriptor(folder)}/{text}"
        absolute = self.without_upper(os.path.abspath(text))
        # A folder with two names is one: by a link, or as the current folder.
        folder_name, name = os.path.split(absolute)
        return os.path.join(_real_folder(folder_name), name) if name else absolute

    def of_descriptor(self, descriptor: int) -> str:
        """Return the path of an open folder."""
        return self.without_upper(_readlink(f"/proc/self/fd/{descriptor}"))

    def link_text(self, source: str, link: str) -> str:
        """Return what a symbolic link contains: where its target is now. `link`: its path; `source`: what it names."""
        target = os.path.abspath(os.path.join(os.path.dirname(link), source))
        is_real = exists(target) and self.current(target) == target
        if is_real or self.is_direct(target):
            return target
        return self._upper + target if source.startswith("/") else source

    def is_real_descriptor(self, descriptor: int) -> bool:
        """Whether an open file is a real one that the script must not change."""
        path = _readlink(f"/proc/self/fd/{descriptor}")
        return path.startswith("/") and not path.startswith(f"{self._upper}/") and not self.is_direct(path)

    def current(self, path: str) -> str:
        """Return where the script finds what it calls `path`: a changed file, or the real one."""
        upper = self._upper + path
        if self.is_direct(path):
            return path
        # Of a missing path, the error is that of the changed folder, or of the changed file in place of a folder.
        is_missing_in_changed = not exists(path) and exists(os.path.dirname(upper))
        return upper if exists(upper) or self._is_hidden(path) or is_missing_in_changed else path

    def for_new(self, path: str) -> str:
        """Return where to write a file or a folder anew; its folder exists there if it exists for the script."""
        if self.is_direct(path):
            return path
        parent, upper = os.path.dirname(path), self._upper + path
        if is_folder(self.current(parent)):
            _make_folders(os.path.dirname(upper))
            self._note(path)
        return upper

    def for_change(self, path: str) -> str:
        """Return where to change a file in place: in a copy. Raises RefusedChangeError if it is too large to copy."""
        if self.is_direct(path) or not _is_file(self.current(path)):
            return self.for_new(path)
        upper = self._upper + path
        if not exists(upper):
            if _stat(path).st_size > _MAX_COPY_BYTES:
                raise RefusedChangeError(f"{REFUSAL} a script change the large file {path} during a trial")
            self.for_new(path)
            with _open(path, "rb") as source, _open(upper, "wb") as target:
                shutil.copyfileobj(source, target)
        return upper

    def hide(self, path: str) -> None:
        """Make a real file or folder missing for the script."""
        if not self.is_direct(path) and exists(path):
            self._removed.add(path)
            self._note(path)

    def names(self, path: str) -> list[str] | None:
        """Return what the script finds in a folder; None if only one place has it, so that `current` is enough."""
        upper = self._upper + path
        if self.is_direct(path) or not is_folder(upper):
            return self._without_removed(path) if self._removed and is_folder(self.current(path)) else None
        if self._is_hidden(path) or not is_folder(path):
            return None
        return sorted({*_listdir(upper), *self._without_removed(path)})

    def is_unchanged(self, path: str) -> bool:
        """Whether the script finds a real file or folder of this path, be it with changes in it."""
        return exists(path) and not self.is_direct(path) and not self._is_hidden(path)

    def is_direct(self, path: str) -> bool:
        """Whether the script writes the real file of this path."""
        return any(path == folder or path.startswith(f"{folder}/") for folder in self._direct)

    def _without_removed(self, path: str) -> list[str]:
        prefix = "" if path == "/" else path
        return [name for name in _listdir(path) if f"{prefix}/{name}" not in self._removed]

    def without_upper(self, path: str) -> str:
        """Return the path that the script means by one of a changed file."""
        return (path[len(self._upper) :] or "/") if path.startswith(f"{self._upper}/") else path

    def _is_hidden(self, path: str) -> bool:
        return bool(self._removed) and any(each in self._removed for each in _with_parents(path))

    def _note(self, path: str) -> None:
        if path not in self.changed:
            self.changed.append(path)


@functools.lru_cache(maxsize=10_000)
def _real_folder(path: str, links: int = 0) -> str:
    """Return the path of a folder without symbolic links, as far as it exists."""
    if path == "/" or links > _MOST_LINKS:
        return path
    parent, name = os.path.split(path)
    resolved = os.path.join(_real_folder(parent, links), name)
    if stat.S_ISLNK(_mode(resolved, _lstat) or 0):
        target = os.path.join(os.path.dirname(resolved), _readlink(resolved))
        return _real_folder(os.path.abspath(target), links + 1)
    return resolved


def exists(path: str) -> bool:
    """Whether there really is a file, folder or link of this path."""
    return _mode(path, _lstat) is not None


def is_folder(path: str) -> bool:
    """Whether there really is a folder of this path."""
    return stat.S_ISDIR(_mode(path, _stat) or 0)


def _is_file(path: str) -> bool:
    return stat.S_ISREG(_mode(path, _stat) or 0)


def _mode(path: str, read: Callable[[str], os.stat_result]) -> int | None:
    try:
        return read(path).st_mode
    except (OSError, ValueError):
        return None


def _make_folders(path: str) -> None:
    if not is_folder(path):
        _make_folders(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):  # another thread or process made it
            _mkdir(path)


def _with_parents(path: str) -> Iterator[str]:
    while path != "/":
        yield path
        path = os.path.dirname(path)
