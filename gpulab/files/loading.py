"""Load a file, a directory or a pattern."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpulab import store, trace
from gpulab.errors import GpulabError, TraceError
from gpulab.files.cache import ReadSettings, RunCache
from gpulab.files.paths import FileSet, find_files, is_other_database, is_other_json, no_files_error
from gpulab.files.progress_bar import Progress
from gpulab.files.rank_order import sort_by_rank
from gpulab.files.ranks import Ranks
from gpulab.files.warnings import warn
from gpulab.run import Gap, Run
from gpulab.trace import Limits, nsight, xla

PathOrPattern = str | os.PathLike[str]
_MAX_REASONS = 3


def load(
    path: PathOrPattern,
    *,
    shapes: bool | None = None,
    limits: Limits | None = None,
    progress: bool = True,
    cache: bool | PathOrPattern = False,
) -> Any:
    """Load a Run from a file, or Ranks (a sequence of Runs) from a directory or a pattern such as "runs/**/*.json.gz".

    A file is a trace of PyTorch's profiler (.json, .json.gz), an SQLite export of Nsight Systems (.sqlite), a trace of
    JAX's profiler (.trace.json.gz) or a run written by `gpulab.save` (.gpulab), recognised by its content. An export of
    Nsight Systems with several processes that used the GPU gives Ranks, one run for each. A damaged trace gives a
    partial run, and `run.recording.lost` lists the losses. Subdirectories are searched only by a pattern with `**`.
    Files that cannot be read are listed in a warning and in `ranks.unread`.

    `shapes=True` reads the inputs of operators of a large trace, too, if they were recorded; this takes a fifth more
    time. `limits` bounds how much of a trace is read (gpulab.trace.Limits). `progress=False` disables the progress bar,
    which a quick load does not show anyway. `cache=True` stores the run of each trace in a .gpulab file next to it,
    `cache="folder"` in that folder, and loads it from there while the trace is unchanged; by default nothing is
    written.

    Raises TraceError or StoreError if nothing can be read. The type of the result depends on the path, so the declared
    type is open; `gpulab.files.load_run` and `gpulab.files.load_ranks` have one type each.
    """
    file_set = find_files(path)
    reading = ReadSettings(limits or Limits(), shapes)
    if file_set.is_multiple:
        return _ranks(file_set, reading, progress, cache)
    runs = _runs(file_set, reading, progress, cache)
    return runs[0] if len(runs) == 1 else Ranks(runs)


def load_run(
    path: PathOrPattern,
    *,
    shapes: bool | None = None,
    limits: Limits | None = None,
    progress: bool = True,
    cache: bool | PathOrPattern = False,
) -> Run:
    """Load the Run of one file, like `load`. Raises TraceError for a directory or a pattern, too."""
    file_set = find_files(path)
    if file_set.is_multiple:
        raise TraceError(
            f"{file_set.name} is not one file.",
            why="it is a directory or a pattern",
            fix="give the path of one file, or load all of them with gpulab.load(...)",
        )
    runs = _runs(file_set, ReadSettings(limits or Limits(), shapes), progress, cache)
    if len(runs) > 1:
        raise TraceError(
            f"{file_set.name} is not one run.",
            why=f"{len(runs)} processes used the GPU",
            fix="load all of them with gpulab.load(...), and choose one",
        )
    return runs[0]


def load_ranks(
    path: PathOrPattern,
    *,
    shapes: bool | None = None,
    limits: Limits | None = None,
    progress: bool = True,
    cache: bool | PathOrPattern = False,
) -> Ranks:
    """Load the runs of a directory or a pattern, like `load`; a single file gives a sequence of one."""
    return _ranks(find_files(path), ReadSettings(limits or Limits(), shapes), progress, cache)


def _runs(file_set: FileSet, reading: ReadSettings, progress: bool, cache: bool | PathOrPattern) -> tuple[Run, ...]:
    run_cache = RunCache(cache, reading)
    with Progress(file_set.files, visible=progress) as bar:
        runs = _read(file_set.files[0], reading, run_cache, bar)
    run_cache.warn_of_failures()
    return runs


def _ranks(file_set: FileSet, reading: ReadSettings, progress: bool, cache: bool | PathOrPattern) -> Ranks:
    run_cache = RunCache(cache, reading)
    runs: dict[Path, tuple[Run, ...]] = {}
    failed: dict[Path, GpulabError] = {}
    with Progress(file_set.files, visible=progress) as bar:
        for path in file_set.files:
            try:
                runs[path] = _read(path, reading, run_cache, bar)
            except GpulabError as error:
                # A JSON file of settings, or a database of something else, among the traces is not a loss.
                if not (file_set.is_multiple and (is_other_json(path) or is_other_database(path))):
                    failed[path] = error
    run_cache.warn_of_failures()
    if not runs:
        raise _error_for_nothing_read(file_set, failed)
    if failed:
        warn(f"{len(failed)} of {len(runs) + len(failed)} files could not be read: {_first_reasons(failed)}")
    unread = tuple(Gap(what=error.problem, why=error.why, fix=error.fix) for error in failed.values())
    return Ranks(sort_by_rank(runs, failed), unread)


def _read(path: Path, reading: ReadSettings, run_cache: RunCache, bar: Progress) -> tuple[Run, ...]:
    """The runs of a file: one, unless it is of Nsight Systems."""
    bar.begin(path)
    # A run whose first bytes are damaged is recognised by its suffix, so that the error message is about a run.
    if store.is_run(path) or (path.suffix == store.SUFFIX and not trace.is_trace(path)):
        return (store.open(path),)
    if nsight.is_report(path):
        raise nsight.report_error(path)
    if nsight.is_database(path):
        return nsight.read_export(path)  # not cached: this is as fast as a cached run
    if xla.is_xla_trace(path):
        return (run_cache.run(path, lambda: xla.read_xla(path, limits=reading.limits, progress=bar.advance)),)
    return (
        run_cache.run(
            path, lambda: trace.read(path, limits=reading.limits, shapes=reading.shapes, progress=bar.advance)
        ),
    )


def _error_for_nothing_read(file_set: FileSet, failed: Mapping[Path, GpulabError]) -> GpulabError:
    if not failed:
        return no_files_error(file_set.name)
    first = next(iter(failed.values()))
    if len(failed) == 1:
        return first
    return TraceError(
        f"None of the {len(failed)} files of {file_set.name} could be read.", why=_first_reasons(failed), fix=first.fix
    )


def _first_reasons(failed: Mapping[Path, GpulabError]) -> str:
    """The first few files, each with its reason."""
    reasons = [f"{path.name} ({error.why})" for path, error in list(failed.items())[:_MAX_REASONS]]
    more = len(failed) - len(reasons)
    return "; ".join([*reasons, *([f"and {more} more"] if more else [])])
