"""Python's functions for files, for a script in a trial: those that write do so in an overlay, and the others see it.

Compiled code that opens files itself is not redirected: where the system can, `write_limits` refuses its writes.
"""

from __future__ import annotations

import builtins
import bz2
import contextlib
import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from gpulab.trial.effects.overlay import Overlay, exists, is_folder
from gpulab.trial.effects.program_guard import REFUSAL, RefusedChangeError

_READERS = ("stat", "lstat", "access", "chdir", "statvfs", "listxattr", "getxattr")
_IN_PLACE = ("truncate", "utime", "chmod", "chown", "lchown", "setxattr", "removexattr", "fchmod", "fchown")


class RedirectedFiles:
    """Replaces the functions of `os` and others in a block."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._links: dict[str, str] = {}  # what the links that the script made contain, as it believes

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Redirect what the code inside this context does with files."""
        with contextlib.ExitStack() as stack:
            for owner, name, redirected in self._functions():
                stack.enter_context(patch.object(owner, name, redirected(getattr(owner, name))))
            yield

    def redirect_torch(self) -> None:
        """Redirect the files that PyTorch writes itself. For good: the process ends with the trial."""
        library = sys.modules["torch"]._C
        library.PyTorchFileWriter = self._written(library.PyTorchFileWriter)
        library.PyTorchFileReader = self._reading(library.PyTorchFileReader)

    def redirect_safetensors(self) -> None:
        """Redirect the files that safetensors reads and writes. For good."""
        module: Any = sys.modules["safetensors"]
        original, module.safe_open = module.serialize_file, self._reading(module.safe_open)

        def redirected(tensors: Any, filename: Any, *arguments: Any, **options: Any) -> Any:
            return original(tensors, self._new(filename), *arguments, **options)

        module.serialize_file = redirected

    def _functions(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        yield builtins, "open", self._opened
        yield io, "open", self._opened
        yield os, "open", self._opened_descriptor
        yield bz2, "_builtin_open", self._opened
        for name in filter(functools.partial(hasattr, os), _READERS):
            yield os, name, self._reading
        for name in filter(functools.partial(hasattr, os), _IN_PLACE):
            yield os, name, self._in_place
        yield os, "readlink", self._link_reading
        yield os, "getcwd", self._current_folder
        yield os, "listdir", self._listed
        yield os, "scandir", self._scanned
        yield os, "mkdir", self._folder_creation
        yield os, "rmdir", self._removed_folder
        for name in ("remove", "unlink"):
            yield os, name, self._removed
        for name in ("rename", "replace"):
            yield os, name, self._renamed
        yield os, "symlink", self._linked
        yield os, "link", self._linked

    def _new(self, path: Any) -> Any:
        return self._overlay.for_new(self._overlay.logical(path)) if _is_path(path) else path

    def _opened(self, original: Any) -> Any:
        def redirected(file: Any, mode: Any = "r", *arguments: Any, **options: Any) -> Any:
            if not _is_path(file) or options.get("opener") is not None:
                return original(file, mode, *arguments, **options)
            path, text = self._overlay.logical(file), str(mode)
            target = self._overlay.current(path)
            if is_folder(target):
                return original(target, mode, *arguments, **options)  # raises
            if "w" in text or ("x" in text and not exists(target)):
                target = self._overlay.for_new(path)
            elif "a" in text or "+" in text:
                target = self._overlay.for_change(path)
            return original(target, mode, *arguments, **options)

        return redirected

    def _opened_descriptor(self, original: Any) -> Any:
        def redirected(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
            logical = self._overlay.logical(path, dir_fd)
            target = self._overlay.current(logical)
            if flags & os.O_CREAT and not exists(target):
                target = self._overlay.for_new(logical)
            elif (
                not is_folder(target)
                and flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND)
                and not flags & os.O_EXCL
            ):
                target = self._overlay.for_change(logical)
            return original(target, flags, mode)

        return redirected

    def _reading(self, original: Any) -> Any:
        """A function that reads what its first argument names."""

        def redirected(path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if not _is_path(path):
                return original(path, *arguments, **options)
            return original(self._overlay.current(self._overlay.logical(path, dir_fd)), *arguments, **options)

        return redirected

    def _written(self, original: Any) -> Any:
        """A function that writes a new file, which its first argument names."""

        def redirected(path: Any, *arguments: Any, **options: Any) -> Any:
            return original(self._new(path), *arguments, **options)

        return redirected

    def _in_place(self, original: Any) -> Any:
        """A function that changes a file. Folders stay as they are: it changes their time or mode at most."""
        name = original.__name__

        def redirected(path: Any, *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if not _is_path(path):
                is_real = isinstance(path, int) and self._overlay.is_real_descriptor(path)
                return None if is_real and name != "truncate" else original(path, *arguments, **options)
            logical = self._overlay.logical(path, dir_fd)
            if is_folder(self._overlay.current(logical)):
                return original(self._overlay.current(logical), *arguments) if name == "truncate" else None
            return original(self._overlay.for_change(logical), *arguments, **options)

        return redirected

    def _listed(self, original: Any) -> Any:
        def redirected(path: Any = ".") -> Any:
            logical = self._logical_folder(path)
            names = None if logical is None else self._overlay.names(logical)
            if logical is None:
                return original(path)
            return original(self._overlay.current(logical)) if names is None else names

        return redirected

    def _scanned(self, original: Any) -> Any:
        def redirected(path: Any = ".") -> Any:
            logical = self._logical_folder(path)
            names = None if logical is None else self._overlay.names(logical)
            if logical is None or names is None:
                # Of an open folder, the entries have names only.
                return original(path if logical is None or isinstance(path, int) else self._overlay.current(logical))
            return _Entries(original, {self._overlay.current(f"{logical.rstrip('/')}/{name}") for name in names})

        return redirected

    def _logical_folder(self, path: Any) -> str | None:
        if isinstance(path, int):
            return self._overlay.of_descriptor(path)
        return None if isinstance(path, bytes) else self._overlay.logical("." if path is None else path)

    def _folder_creation(self, original: Any) -> Any:
        def redirected(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            logical = self._overlay.logical(path, dir_fd)
            target = self._overlay.current(logical)
            original(target if exists(target) else self._overlay.for_new(logical), mode)

        return redirected

    def _removed_folder(self, original: Any) -> Any:
        def redirected(path: Any, *, dir_fd: int | None = None) -> None:
            logical = self._overlay.logical(path, dir_fd)
            target = self._overlay.current(logical)
            names = self._overlay.names(logical)
            if names if names is not None else is_folder(target) and os.listdir(target):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
            self._take_away(original, logical, is_there=is_folder(target))

        return redirected

    def _removed(self, original: Any) -> Any:
        def redirected(path: Any, *, dir_fd: int | None = None) -> None:
            logical = self._overlay.logical(path, dir_fd)
            target = self._overlay.current(logical)
            if is_folder(target) and not os.path.islink(target):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
            self._take_away(original, logical, is_there=exists(target))

        return redirected

    def _take_away(self, original: Any, logical: str, *, is_there: bool) -> None:
        """Remove a changed file or folder, and hide a real one. Raises what `original` raises if there is none."""
        target = self._overlay.current(logical)
        if target != logical or self._overlay.is_direct(logical) or not is_there:
            original(target)
        self._overlay.hide(logical)

    def _renamed(self, original: Any) -> Any:
        def redirected(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            source, target = self._overlay.logical(src, src_dir_fd), self._overlay.logical(dst, dst_dir_fd)
            if not exists(self._overlay.current(source)):
                original(self._overlay.current(source), self._overlay.current(target))  # raises
            if source == target:
                return
            code = self._obstacle(source, target)
            if code:
                raise OSError(code, os.strerror(code), src, None, dst)
            if is_folder(self._overlay.current(source)) and self._overlay.is_unchanged(source):
                raise RefusedChangeError(f"{REFUSAL} a script rename the folder {source} during a trial")
            original(self._overlay.for_change(source), self._overlay.for_new(target))
            self._overlay.hide(source)

        return redirected

    def _obstacle(self, source: str, target: str) -> int:
        """Return why one path cannot become the other, as an error number; 0 if it can."""
        source_place, target_place = self._overlay.current(source), self._overlay.current(target)
        if source.startswith(f"{target}/"):
            return errno.ENOTEMPTY
        if not is_folder(source_place):
            return errno.EISDIR if is_folder(target_place) else 0
        if target.startswith(f"{source}/"):
            return errno.EINVAL
        if not exists(target_place):
            return 0
        if not is_folder(target_place):
            return errno.ENOTDIR
        return errno.ENOTEMPTY if os.listdir(target) else 0

    def _linked(self, original: Any) -> Any:
        def redirected(src: Any, dst: Any, *arguments: Any, **options: Any) -> None:
            link = self._overlay.logical(dst)
            if original.__name__ == "symlink":
                source = self._overlay.link_text(os.fsdecode(src), link)
                self._links[link] = os.fsdecode(src)
            else:
                source = self._overlay.for_change(self._overlay.logical(src))
            original(source, self._overlay.for_new(link), *arguments)

        return redirected

    def _link_reading(self, original: Any) -> Any:
        def redirected(path: Any, *, dir_fd: int | None = None) -> Any:
            logical = self._overlay.logical(path, dir_fd)
            text = original(self._overlay.current(logical))  # raises if it is no link
            return self._links.get(logical, text)

        return redirected

    def _current_folder(self, original: Any) -> Any:
        return lambda: self._overlay.without_upper(original())


class _Entries:
    """The entries of a folder that is in two places, as `os.scandir` gives them."""

    def __init__(self, scan: Any, paths: set[str]) -> None:
        self._entries = iter(_entries(scan, paths))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: what was read is in memory."""


def _entries(scan: Any, paths: set[str]) -> list[Any]:
    all_entries = []
    for folder in sorted({os.path.dirname(path) for path in paths}):
        with scan(folder) as entries:
            all_entries += [entry for entry in entries if os.path.join(folder, entry.name) in paths]
    return all_entries


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, bytes, os.PathLike))
