"""The task of a worker: read the file of one rank, and return its summary, or the reason why there is none."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from gpulab.errors import GpulabError
from gpulab.files import load_run
from gpulab.files.paths import is_other_json
from gpulab.files.rank_order import rank_in_name
from gpulab.fleet.rank_files import RankFile, local_path
from gpulab.fleet.rank_summary import MAX_TEXT, RankSummary
from gpulab.fleet.summarise import summarise_run
from gpulab.fleet.summary_cache import SummaryCache
from gpulab.run import Run
from gpulab.trace import Limits
from gpulab.wording import clean, sentence

_REUSED_BYTES = 200_000_000  # a worker that is smaller than that keeps its memory for the next rank


@dataclass(frozen=True)
class FileReading:
    """How the files of a job are read; the same for all of them."""

    cache: SummaryCache | None = None
    limits: Limits | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)


def prepare_worker() -> None:
    """Keep what was imported so far out of garbage collections; for a process that does nothing but these tasks."""
    gc.freeze()


def summarise_file(file: RankFile, reading: FileReading) -> RankSummary | None:
    """Return the summary of the rank in a file, with `error` if it cannot be read; None for a JSON file of settings."""
    cached = reading.cache.load(file) if reading.cache else None
    if cached is not None:
        return cached
    summary = _summary(file, reading)
    _return_freed_memory()
    if reading.cache and summary is not None and not summary.error:
        reading.cache.store(file, summary)
    return summary


def _summary(file: RankFile, reading: FileReading) -> RankSummary | None:
    try:
        with local_path(file, reading.storage_options) as path:
            try:
                run = load_run(path, limits=reading.limits, progress=False)
            except GpulabError:
                if rank_in_name(file.name) is None and is_other_json(path):
                    return None
                raise
            run = _with_rank_of_name(run, file)
            summary = summarise_run(run, file.path)
            run.results.clear()  # they refer to the run: without the circle, its events are freed at once
            return summary
    except GpulabError as error:
        return unread_rank(file, f"{error.problem} {sentence(error.why)}")
    except (OSError, EOFError) as error:
        return unread_rank(file, str(error) or type(error).__name__)


def load_rank(file: RankFile, reading: FileReading) -> Run:
    """Return the run of one rank, with all events. Raises TraceError, StoreError or OSError if it cannot be read."""
    with local_path(file, reading.storage_options) as path:
        return _with_rank_of_name(load_run(path, limits=reading.limits), file)


def unread_rank(file: RankFile, reason: str) -> RankSummary:
    """Return the summary of a file that could not be read."""
    return RankSummary(path=file.path, rank=rank_in_name(file.name), error=clean(reason, MAX_TEXT) or "unknown reason")


def _return_freed_memory() -> None:
    """Give the memory of the freed events back to the system, unless it is so little that the next rank may reuse it.

    The allocator of glibc would keep it, in more and more fragments: a worker would grow by 0.6 MB with each rank.
    """
    if psutil.Process().memory_info().rss < _REUSED_BYTES:
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        return


def _with_rank_of_name(run: Run, file: RankFile) -> Run:
    rank = rank_in_name(file.name)
    return run if run.rank is not None or rank is None else replace(run, rank=rank)
