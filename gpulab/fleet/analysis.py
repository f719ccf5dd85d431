"""gpulab.fleet(): analyse the traces of a job with many ranks on a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from gpulab.errors import TraceError
from gpulab.fleet.cluster import cluster_client, require_libraries, summarise_files
from gpulab.fleet.fleet_result import Fleet
from gpulab.fleet.rank_files import PathOrUrl, find_rank_files
from gpulab.fleet.rank_task import FileReading
from gpulab.fleet.summary_cache import SummaryCache, reader_digest
from gpulab.trace import Limits


def fleet(
    paths: PathOrUrl | Sequence[PathOrUrl],
    client: Any = None,
    *,
    cache: PathOrUrl | None = None,
    progress: bool = True,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Fleet:
    """Analyse a job with hundreds or thousands of ranks: step times, ledger, stragglers, findings over all ranks.

    `paths`: a directory, a pattern such as "traces/**/*.json.gz", a URL such as "s3://bucket/job/*.json.gz", or several
    of them. Files are traces of torch.profiler or runs of gpulab, one per rank, and are opened on the workers.
    `client`: a dask.distributed Client; by default, a local cluster is started, with a process per core, and closed at
    the end. `cache`: a folder or URL that the workers can write to; it keeps the summary of each rank, so that a
    further or an interrupted analysis reads only what is new. `limits`: how much of a trace is read. `storage_options`:
    what the file system of a URL needs, such as credentials.

    A file that cannot be read is listed with its reason, and so is a file that kills its workers. Raises GpulabError if
    Dask is missing or no cluster starts, and TraceError if there is no file, or none of them can be read.
    """
    require_libraries()
    options = dict(storage_options or {})
    files = find_rank_files(paths, options)
    folder = None if cache is None else os.path.expanduser(os.fspath(cache))  # noqa: PTH111, it may be a URL
    if folder is not None and "://" not in folder:
        folder = os.path.abspath(folder)  # noqa: PTH100, workers may have another working folder
    reading = FileReading(
        cache=SummaryCache(folder, f"{reader_digest()} {limits}") if folder is not None else None,
        limits=limits,
        storage_options=options,
    )
    with cluster_client(client, len(files)) as active:
        job = summarise_files(active, files, reading, progress=progress)
    if not job.ranks:
        raise _error_for_nothing_read(len(files), [file.reason for file in job.unread])
    return Fleet(job, {file.path: file for file in files}, reading)


def _error_for_nothing_read(count: int, reasons: Sequence[str]) -> TraceError:
    return TraceError(
        f"None of the {count} files could be read.",
        why=reasons[0] if reasons else "they contain no events",
        fix="give traces of torch.profiler or runs of gpulab; if the workers run elsewhere, paths must exist there",
    )
