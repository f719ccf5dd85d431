"""Cache of loaded traces: on request, a run is stored next to its trace and used while the trace is unchanged."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpulab import store
from gpulab.errors import StoreError
from gpulab.files.warnings import warn
from gpulab.run import Run
from gpulab.trace import Limits

_MARK = "cache_of"  # fact of a cached run with the fingerprint of its trace; a loaded run does not show it
_END_BYTES = 64 * 1024


class ReadSettings(NamedTuple):
    """Settings for reading a trace, as given by the user."""

    limits: Limits
    shapes: bool | None  # None: unless the trace is large


class RunCache:
    """The cached runs of one load. With `location` False, nothing is read or written."""

    def __init__(self, location: bool | str | os.PathLike[str], reading: ReadSettings) -> None:
        self._folder = None if isinstance(location, bool) else Path(os.path.expanduser(location))  # noqa: PTH111
        self._on = location is not False
        self._reading = reading
        self._failures: list[StoreError] = []

    def run(self, path: Path, read: Callable[[], Run]) -> Run:
        """The run of a trace: the cached one if it is of this file and reader, else `read()`, which is then cached."""
        fingerprint = self._fingerprint(path) if self._on else None
        if fingerprint is None:
            return read()
        sidecar = self._sidecar(path)
        cached = _open_sidecar(sidecar)
        if cached is not None and cached.facts.get(_MARK) == fingerprint:
            return replace(cached, facts={name: fact for name, fact in cached.facts.items() if name != _MARK})
        run = read()
        if cached is not None and _MARK not in cached.facts:
            self._failures.append(_foreign_run_error(sidecar))
        elif fingerprint == self._fingerprint(path):  # otherwise the trace has grown in the meantime
            self._write(run, sidecar, fingerprint)
        return run

    def warn_of_failures(self) -> None:
        """Warn once about runs that could not be cached in this load."""
        if self._failures:
            first = self._failures[0]
            more = f" (and {len(self._failures) - 1} more)" if len(self._failures) > 1 else ""
            warn(f"the cache was not written{more}. {first.problem} why: {first.why}; fix: {first.fix}")

    def _write(self, run: Run, sidecar: Path, fingerprint: str) -> None:
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            store.save(replace(run, facts={**run.facts, _MARK: fingerprint}), sidecar)
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL character
            self._failures.append(_folder_error(sidecar, error))
        except StoreError as error:
            self._failures.append(error)

    def _sidecar(self, path: Path) -> Path:
        return _sidecar_next_to(path) if self._folder is None else self._folder / _sidecar_name(path)

    def _fingerprint(self, path: Path) -> str | None:
        """Hash of the file's current state and of its reader; None if the file cannot be opened."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                head = file.read(_END_BYTES)
                file.seek(max(0, status.st_size - _END_BYTES))
                tail = file.read(_END_BYTES)
        except OSError:
            return None
        key = (path.name, status.st_size, status.st_mtime_ns, self._reading, _reader())
        return hashlib.sha256(repr(key).encode("utf-8", "surrogateescape") + head + tail).hexdigest()


def without_sidecars(files: Sequence[Path]) -> tuple[Path, ...]:
    """The files without those that the cache created for others among them."""
    sidecars = {_sidecar_next_to(path) for path in files}
    names_in_folder = {_sidecar_name(path) for path in files}
    return tuple(path for path in files if path not in sidecars and path.name not in names_in_folder)


def _sidecar_next_to(path: Path) -> Path:
    return path.with_name(path.name + store.SUFFIX)


def _sidecar_name(path: Path) -> str:
    # Every job has a rank_0.json.gz, and several jobs may share a cache folder.
    origin = hashlib.sha256(os.fsencode(path.resolve().parent)).hexdigest()[:8]
    return f"{path.name}.{origin}{store.SUFFIX}"


@functools.cache
def _reader() -> str:
    """Digest of the code that reads traces: another version may produce another run from the same file."""
    package = Path(store.__file__).parents[1]
    digest = hashlib.sha256(f"{store.MAJOR}.{store.MINOR}".encode())
    for source in [
        *(package / f"{name}.py" for name in ("rows", "run", "tables")),
        *sorted(package.glob("store/**/*.py")),
        *sorted(package.glob("trace/**/*.py")),
    ]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _open_sidecar(sidecar: Path) -> Run | None:
    """The cached run; None if there is none or it is damaged."""
    try:
        return store.open(sidecar) if store.is_run(sidecar) else None
    except StoreError:
        return None


def _foreign_run_error(sidecar: Path) -> StoreError:
    return StoreError(
        f"{sidecar} is not a cache file.",
        why="it is a run that was saved under this name, so gpulab does not overwrite it",
        fix='rename it, or choose another folder for the cache: cache="folder"',
    )


def _folder_error(sidecar: Path, error: OSError | ValueError) -> StoreError:
    return StoreError(
        f"The folder {sidecar.parent} could not be created.",
        why=(error.strerror if isinstance(error, OSError) else None) or str(error),
        fix="choose another folder",
    )
