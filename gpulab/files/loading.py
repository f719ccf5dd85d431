"""What a user calls: load a file, a directory or a pattern; save a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpulab import store, trace
from gpulab.errors import GpulabError, TraceError
from gpulab.files.cache import Cache, Reading
from gpulab.files.paths import Place, find, is_other_json, nothing_in
from gpulab.files.progress_bar import Progress
from gpulab.files.rank_order import in_order
from gpulab.files.ranks import Ranks
from gpulab.files.warnings import warn
from gpulab.run import Gap, Run
from gpulab.trace import Limits

Where = str | os.PathLike[str]
_LISTED = 3


def load(
    path: Where,
    *,
    shapes: bool | None = None,
    limits: Limits | None = None,
    progress: bool = True,
    cache: bool | Where = False,
) -> Any:
    """A Run from a file; from a directory or a pattern such as "runs/**/*.json.gz" the Ranks, a sequence of Runs.

    A file is a trace of PyTorch's profiler (.json, .json.gz) or a run that `gpulab.save` wrote (.gpulab), told apart by
    content. A damaged trace gives the part that can be read, and `run.recording.lost` says what could not. A directory
    is not searched deeper; a pattern's `**` is. Files that cannot be read are named in a warning and in `ranks.unread`.

    `shapes=True` reads the inputs of operators of a large trace, too, where they were recorded: a fifth more time.
    `limits` bounds how much of a trace is read (gpulab.trace.Limits). `progress=False` shows no bar; a quick load shows
    none anyway. `cache=True` keeps what was read of each trace in a .gpulab file beside it, `cache="folder"` in that
    folder, and takes it from there as long as the trace stays the same; without it nothing is written.

    Raises TraceError or StoreError where nothing can be read. What lies at the path decides what comes back, so the
    declared type is open; `gpulab.files.load_run` and `gpulab.files.load_ranks` have one type each.
    """
    place = find(path)
    reading = Reading(limits or Limits(), shapes)
    return _ranks(place, reading, progress, cache) if place.many else _run(place, reading, progress, cache)


def load_run(
    path: Where,
    *,
    shapes: bool | None = None,
    limits: Limits | None = None,
    progress: bool = True,
    cache: bool | Where = False,
) -> Run:
    """The Run of one file, as `load` gives it. Raises TraceError for a directory or a pattern, too."""
    place = find(path)
    if place.many:
        raise TraceError(
            f"{place.name} is not one file.",
            why="it is a directory or a pattern",
            fix="name one file, or take all its runs with gpulab.load(...)",
        )
    return _run(place, Reading(limits or Limits(), shapes), progress, cache)


def load_ranks(
    path: Where,
    *,
    shapes: bool | None = None,
    limits: Limits | None = None,
    progress: bool = True,
    cache: bool | Where = False,
) -> Ranks:
    """The runs of a directory or a pattern, as `load` gives them; of a single file a sequence of one."""
    return _ranks(find(path), Reading(limits or Limits(), shapes), progress, cache)


def save(run: Run, path: Where) -> Path:
    """Write a run to one `.gpulab` file, whole or not at all; gives the path. Raises StoreError where it cannot."""
    return store.save(run, path)


def _run(place: Place, reading: Reading, progress: bool, cache: bool | Where) -> Run:
    kept = Cache(cache, reading)
    with Progress(place.files, shown=progress) as bar:
        run = _read(place.files[0], reading, kept, bar)
    kept.complain()
    return run


def _ranks(place: Place, reading: Reading, progress: bool, cache: bool | Where) -> Ranks:
    kept = Cache(cache, reading)
    runs: dict[Path, Run] = {}
    failed: dict[Path, GpulabError] = {}
    with Progress(place.files, shown=progress) as bar:
        for path in place.files:
            try:
                runs[path] = _read(path, reading, kept, bar)
            except GpulabError as error:
                # A settings file among the traces is nothing that was lost.
                if not (place.many and is_other_json(path)):
                    failed[path] = error
    kept.complain()
    if not runs:
        raise _none(place, failed)
    if failed:
        warn(f"{len(failed)} of {len(runs) + len(failed)} files could not be read: {_listed(failed)}")
    unread = tuple(Gap(what=error.what, why=error.why, fix=error.fix) for error in failed.values())
    return Ranks(in_order(runs, failed), unread)


def _read(path: Path, reading: Reading, kept: Cache, bar: Progress) -> Run:
    bar.begin(path)
    # A run whose first bytes are damaged is told by its name, so that its error speaks of a run.
    if store.is_run(path) or (path.suffix == store.SUFFIX and not trace.is_trace(path)):
        return store.open(path)
    return kept.run(path, lambda: trace.read(path, limits=reading.limits, shapes=reading.shapes, progress=bar.advance))


def _none(place: Place, failed: Mapping[Path, GpulabError]) -> GpulabError:
    if not failed:
        return nothing_in(place.name)
    first = next(iter(failed.values()))
    if len(failed) == 1:
        return first
    return TraceError(
        f"None of the {len(failed)} files of {place.name} could be read.", why=_listed(failed), fix=first.fix
    )


def _listed(failed: Mapping[Path, GpulabError]) -> str:
    """The first few files, each with its reason."""
    reasons = [f"{path.name} ({error.why})" for path, error in list(failed.items())[:_LISTED]]
    more = len(failed) - len(reasons)
    return "; ".join([*reasons, *([f"and {more} more"] if more else [])])
