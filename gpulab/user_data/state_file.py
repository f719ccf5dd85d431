"""Read and change a small file of the user: changes are atomic, and by one process at a time.

A full disk, a kill or a second notebook never leaves half a file or loses an entry. Content that cannot be read is kept
in a file with the suffix `.damaged`, and reported once. Nothing here takes longer than about a second.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from gpulab.files.warnings import warn
from gpulab.wording import clean

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Content = TypeVar("Content")
Parse = Callable[[bytes], Content]  # raises ValueError or RecursionError if the text is damaged; b"" if no file

DAMAGED_SUFFIX = ".damaged"
LOCK_TIMEOUT_S = 0.9
MAX_BYTES = 64 * 2**20  # a larger file is not ours
_POLL_S = 0.02
_ABANDONED_S = 10.0  # a lock file of this age belongs to a process that was killed: a change takes milliseconds
_reported: set[Path] = set()


def read_state(path: Path | None, parse: Parse[Content]) -> Content:
    """The content of the file; that of an empty one if it does not exist, cannot be read or is damaged."""
    if path is None:
        return parse(b"")
    try:
        text = _read(path)
    except OSError:
        return parse(b"")
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        aside = _damaged_path(path)
        with contextlib.suppress(OSError), _lock(path):
            if _read(path) == text:  # nobody has replaced it meanwhile
                _file(path).replace(aside)
        _report(path, error, aside)
        return parse(b"")


def update_state(path: Path | None, parse: Parse[Content], change: Callable[[Content], bytes | None]) -> bool:
    """Replace the content of the file by what `change` returns for it; False if nothing was written."""
    if path is None:
        return False
    try:
        _file(path).parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            text = _read(path)
            try:
                content = parse(text)
            except (ValueError, RecursionError) as error:
                set_aside(path, text, error)
                content = parse(b"")
            new = change(content)
            if new is None:
                return False
            _replace(_file(path), new)
    except OSError:  # TimeoutError, too
        return False
    return True


def set_aside(path: Path, text: bytes, why: Exception | str) -> None:
    """Keep damaged content next to the file, and report it. Raises OSError if it cannot be kept."""
    aside = _damaged_path(path)
    _replace(aside, text)
    _report(path, why, aside)


def _report(path: Path, why: Exception | str, aside: Path) -> None:
    if path not in _reported:
        _reported.add(path)
        location = f"; the damaged content is now in {aside}" if aside.exists() else ""
        warn(f"{path} is damaged: {clean(str(why), 200)}{location}")


def _file(path: Path) -> Path:
    """The file behind links: a link that is replaced would no longer lead to it."""
    return Path(os.path.realpath(path))


def _damaged_path(path: Path) -> Path:
    """A free name for damaged content."""
    file = _file(path)
    names = [f"{file.name}{DAMAGED_SUFFIX}{number or ''}" for number in range(10)]
    return next((file.with_name(name) for name in names if not file.with_name(name).exists()), file.with_name(names[0]))


def _read(path: Path) -> bytes:
    """The content of the file, b"" if there is none. Raises OSError if it is none of ours."""
    try:
        # A device or a pipe must neither be waited for nor replaced.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise OSError(f"{path} is not a file that gpulab writes")
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _replace(file: Path, text: bytes) -> None:
    """Write a file atomically, with the permissions of the one before."""
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with unfinished.open("xb") as output:
            output.write(text)
        with contextlib.suppress(FileNotFoundError):
            unfinished.chmod(stat.S_IMODE(file.stat().st_mode))
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Keep other processes and threads out of the block. Raises TimeoutError if one of them is in it for a second."""
    file = _file(path)
    with _system_lock(file.with_name(f".{file.name}.lock")) if fcntl is not None else _lock_file(file):
        yield


@contextlib.contextmanager
def _system_lock(lock: Path) -> Iterator[None]:
    with lock.open("ab") as handle:
        _poll(lambda: _locks(handle.fileno()))
        yield  # closing the file releases the lock


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _lock_file(file: Path) -> Iterator[None]:
    lock = file.with_name(f".{file.name}.exclusive")
    _poll(lambda: _creates(lock))
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _creates(lock: Path) -> bool:
    try:
        lock.open("xb").close()
    except FileExistsError:
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime > _ABANDONED_S:
                lock.unlink()
        return False
    return True


def _poll(acquire: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while not acquire():
        if time.monotonic() > deadline_s:
            raise TimeoutError("another process is changing the file")
        time.sleep(_POLL_S)
