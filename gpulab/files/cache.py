"""What was read of a trace, kept beside it where the user asks, and used as long as the trace stays the same."""

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

_MARK = "cache_of"  # the fact of a kept run that tells its trace; a loaded run does not show it
_END_BYTES = 64 * 1024


class Reading(NamedTuple):
    """How a trace is read, as far as a user says."""

    limits: Limits
    shapes: bool | None  # None: where the trace is not large


class Cache:
    """The kept runs of one load. With `where` False there is none: nothing is read, nothing written."""

    def __init__(self, where: bool | str | os.PathLike[str], reading: Reading) -> None:
        self._folder = None if isinstance(where, bool) else Path(os.path.expanduser(where))  # noqa: PTH111
        self._on = where is not False
        self._reading = reading
        self._failures: list[StoreError] = []

    def run(self, path: Path, read: Callable[[], Run]) -> Run:
        """The run of a trace: the kept one if it is of this very file and reader, else `read()`, which is then kept."""
        mark = self._mark(path) if self._on else None
        if mark is None:
            return read()
        sidecar = self._sidecar(path)
        kept = _opened(sidecar)
        if kept is not None and kept.facts.get(_MARK) == mark:
            return replace(kept, facts={name: fact for name, fact in kept.facts.items() if name != _MARK})
        run = read()
        if kept is not None and _MARK not in kept.facts:
            self._failures.append(_taken(sidecar))
        elif mark == self._mark(path):  # a trace that grew meanwhile is another one
            self._keep(run, sidecar, mark)
        return run

    def complain(self) -> None:
        """Warn of what could not be kept, once for the whole load."""
        if self._failures:
            first = self._failures[0]
            more = f" (and {len(self._failures) - 1} more)" if len(self._failures) > 1 else ""
            warn(f"the cache was not written{more}. {first.what} why: {first.why}; fix: {first.fix}")

    def _keep(self, run: Run, sidecar: Path, mark: str) -> None:
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            store.save(replace(run, facts={**run.facts, _MARK: mark}), sidecar)
        except OSError as error:
            self._failures.append(_refused(sidecar, error))
        except StoreError as error:
            self._failures.append(error)

    def _sidecar(self, path: Path) -> Path:
        return _beside(path) if self._folder is None else self._folder / _elsewhere(path)

    def _mark(self, path: Path) -> str | None:
        """What tells this file as it is now, read by this reader; None where it cannot be opened."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                head = file.read(_END_BYTES)
                file.seek(max(0, status.st_size - _END_BYTES))
                tail = file.read(_END_BYTES)
        except OSError:
            return None
        told = (path.name, status.st_size, status.st_mtime_ns, self._reading, _reader())
        return hashlib.sha256(repr(told).encode("utf-8", "surrogateescape") + head + tail).hexdigest()


def without_sidecars(files: Sequence[Path]) -> tuple[Path, ...]:
    """The files without those that `cache` made of others among them."""
    beside = {_beside(path) for path in files}
    elsewhere = {_elsewhere(path) for path in files}
    return tuple(path for path in files if path not in beside and path.name not in elsewhere)


def _beside(path: Path) -> Path:
    return path.with_name(path.name + store.SUFFIX)


def _elsewhere(path: Path) -> str:
    # Every job has its rank_0.json.gz, and they may share a folder of kept runs.
    origin = hashlib.sha256(os.fsencode(path.resolve().parent)).hexdigest()[:8]
    return f"{path.name}.{origin}{store.SUFFIX}"


@functools.cache
def _reader() -> str:
    """A digest of the code that reads traces: an older or newer one may have made something else of the same file."""
    package = Path(store.__file__).parents[1]
    digest = hashlib.sha256(f"{store.MAJOR}.{store.MINOR}".encode())
    for source in [
        *(package / f"{name}.py" for name in ("rows", "run", "tables")),
        *sorted(package.glob("store/**/*.py")),
        *sorted(package.glob("trace/**/*.py")),
    ]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _opened(sidecar: Path) -> Run | None:
    """The kept run; None where there is none or it is damaged."""
    try:
        return store.open(sidecar) if store.is_run(sidecar) else None
    except StoreError:
        return None


def _taken(sidecar: Path) -> StoreError:
    return StoreError(
        f"{sidecar} is a run of yours.",
        why="gpulab did not make it as a cache, so it does not write over it",
        fix='rename it, or keep the cache elsewhere: cache="folder"',
    )


def _refused(sidecar: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The folder {sidecar.parent} could not be made.", why=error.strerror or str(error), fix="name another folder"
    )
