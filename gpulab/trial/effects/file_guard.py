"""Keeps a trial from changing files, starting programs and sending data: a trial of a cell must have no effects.

Writing is allowed in a temporary folder that the trial has for itself. Files that PyTorch saves go to one file there,
because loops save checkpoints, and a trial should take as long. Reading works as ever. Compiled code that opens files
itself, other than PyTorch's and safetensors', is not seen.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import multiprocessing.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpulab.capture.protection.temporary_folder import temporary_folder
from gpulab.trial.effects.program_guard import ProgramGuard

_WRITING = frozenset("wax+")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FOLDER_OPTIONS = ("dir_fd", "src_dir_fd", "dst_dir_fd")
_CHANGES = {
    "remove": "remove",
    "unlink": "remove",
    "rename": "rename",
    "replace": "rename",
    "rmdir": "remove the folder",
    "truncate": "truncate",
    "symlink": "link",
    "link": "link",
    "chmod": "change the mode of",
    "mkdir": "create the folder",
}


class FileGuard(ProgramGuard):
    """Refuses changes of files, new programs and connections in the thread that runs the cell, and in its threads."""

    _code = "a cell"

    def __init__(self) -> None:
        super().__init__()
        self._folder = ""  # in which the cell may write
        self._sockets = ""  # folder of multiprocessing: workers and their parent remove their sockets there

    @contextlib.contextmanager
    def active(self, namespace: dict[str, Any] | None = None) -> Iterator[None]:
        """Guard the code that runs inside this context. `namespace`: its variables, of which `open` may be one."""
        namespace = {} if namespace is None else namespace
        opened = namespace.get("open")
        with contextlib.ExitStack() as stack:
            # Before the temporary folder changes: this one outlives the trial.
            self._sockets = os.path.realpath(multiprocessing.util.get_temp_dir())
            self._folder = os.path.realpath(stack.enter_context(temporary_folder()))
            stack.enter_context(patch.object(tempfile, "tempdir", self._folder))
            stack.enter_context(super().active())
            if opened is not None:  # IPython's own, in every notebook
                namespace["open"] = builtins.open
                stack.callback(namespace.__setitem__, "open", opened)
            yield

    def _guarded_functions(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        yield builtins, "open", self._guarded_open
        yield io, "open", self._guarded_open
        yield os, "open", self._guarded_os_open
        for name, action in _CHANGES.items():
            yield os, name, partial(self._guarded_change, action=action)
        yield from super()._guarded_functions()
        torch = sys.modules.get("torch")
        if torch is not None:
            yield torch._C, "PyTorchFileWriter", self._to_temporary_file
        if (safetensors := sys.modules.get("safetensors.torch")) is not None:
            yield safetensors, "serialize_file", partial(self._guarded_change, action="write")

    def _guarded_open(self, original: Any) -> Any:
        def guarded(file: Any, mode: Any = "r", *arguments: Any, **options: Any) -> Any:
            if _WRITING & set(str(mode)):
                self._check(file, "write")
            return original(file, mode, *arguments, **options)

        return guarded

    def _guarded_os_open(self, original: Any) -> Any:
        def guarded(path: Any, flags: int, *arguments: Any, **options: Any) -> Any:
            if flags & _WRITE_FLAGS:
                self._check(path, "write", options.get("dir_fd"))
            return original(path, flags, *arguments, **options)

        return guarded

    def _guarded_change(self, original: Any, action: str) -> Any:
        def guarded(*arguments: Any, **options: Any) -> Any:
            values = (*arguments, *options.values())
            paths = [value for value in values if isinstance(value, (str, bytes, os.PathLike))]
            folders = [options[name] for name in _FOLDER_OPTIONS if options.get(name) is not None] or [None]
            for path, folder in itertools.product(paths, folders):  # rename: both paths
                if original.__name__ != "mkdir" or not (_folder(folder) / os.fsdecode(path)).is_dir():
                    self._check(path, action, folder)
            return original(*arguments, **options)

        return guarded

    def _to_temporary_file(self, original: Any) -> Any:
        def redirected(file: Any, *arguments: Any, **options: Any) -> Any:
            target = str(Path(self._folder) / "checkpoint") if isinstance(file, (str, os.PathLike)) else file
            return original(target, *arguments, **options)

        return redirected

    def _check(self, path: Any, action: str, folder: int | None = None) -> None:
        """Refuse to change a path outside the folder of the trial. `folder`: an open one, which it is relative to."""
        if isinstance(path, int):  # already open
            return
        try:
            target = Path(os.path.realpath(_folder(folder) / os.fsdecode(path)))
        except TypeError:  # not a path; the original function says so
            return
        if target != Path(os.devnull) and not any(map(target.is_relative_to, (self._folder, self._sockets))):
            self._refuse(f"{action} {target.name}")


def _folder(descriptor: int | None) -> Path:
    """Return the current folder, or an open one; "/" if the system does not say which it is."""
    if descriptor is None:
        return Path.cwd()
    link = Path(f"/proc/self/fd/{descriptor}")
    return link.readlink() if link.is_symlink() else Path("/")
