"""gpulab.fleet(): analyse the traces of a job with many ranks on a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpulab.errors import TraceError, problem_text
from gpulab.files.progress_bar import Progress
from gpulab.fleet.cluster import cluster_client, require_libraries, summarise_files
from gpulab.fleet.fleet_result import Fleet
from gpulab.fleet.job_summary import JobSummary, join_ranks
from gpulab.fleet.rank_files import PathOrUrl, RankFile, find_rank_files
from gpulab.fleet.rank_summary import RankSummary
from gpulab.fleet.rank_task import FileReading, summarise_file, unread_rank
from gpulab.fleet.summary_cache import SummaryCache, reader_digest
from gpulab.trace import Limits
from gpulab.trace.reading.limits import COMPRESSION_RATIO

# Reading so much text takes about as long as starting the processes of a local cluster.
_SMALL_TEXT_BYTES = 300_000_000
_THREADS = 2  # decompression and the compiled parser release the GIL; measured: 1.2 times as fast as one


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
    the end, unless the files are so few and small that this process reads them sooner. `cache`: a folder or URL that
    the workers can write to; it keeps the summary of each rank, so that a further or an interrupted analysis reads only
    what is new. `limits`: how much of a trace is read. `storage_options`: what the file system of a URL needs, such as
    credentials.

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
    if client is None and _are_small(files):
        job = _summarise_here(files, reading, progress=progress)
    else:
        with cluster_client(client, len(files)) as active:
            job = summarise_files(active, files, reading, progress=progress)
    if not job.ranks:
        raise _error_for_nothing_read(len(files), [file.reason for file in job.unread])
    return Fleet(job, {file.path: file for file in files}, reading)


def _are_small(files: Sequence[RankFile]) -> bool:
    """Whether this process reads these files sooner than a local cluster, which it would start first."""
    text_bytes = sum(file.size_bytes * (1 if file.name.endswith(".json") else COMPRESSION_RATIO) for file in files)
    return text_bytes <= _SMALL_TEXT_BYTES and all(file.is_local for file in files)


def _summarise_here(files: Sequence[RankFile], reading: FileReading, *, progress: bool) -> JobSummary:
    """Return the joined summary of all files, read by threads of this process."""
    summaries: list[RankSummary] = []
    pool = ThreadPoolExecutor(_THREADS)
    try:
        with Progress((), visible=progress, total_bytes=sum(file.size_bytes for file in files)) as bar:
            for file, summary in zip(files, pool.map(lambda file: _summary(file, reading), files), strict=True):
                bar.advance(file.size_bytes)
                if summary is not None:
                    summaries.append(summary)
    finally:  # after an interrupt, the files that are being read are finished, and no others are begun
        pool.shutdown(cancel_futures=True)
    return join_ranks(*summaries)


def _summary(file: RankFile, reading: FileReading) -> RankSummary | None:
    try:
        return summarise_file(file, reading)
    except Exception as error:  # as of the task of a worker: it costs only this file, and is listed
        return unread_rank(file, problem_text(error))


def _error_for_nothing_read(count: int, reasons: Sequence[str]) -> TraceError:
    return TraceError(
        f"None of the {count} files could be read.",
        why=reasons[0] if reasons else "they contain no events",
        fix="give traces of torch.profiler or runs of gpulab; if the workers run elsewhere, paths must exist there",
    )
