"""Run the tasks of a job on a Dask cluster, and join their results. The only module that uses dask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from gpulab.errors import GpulabError, problem_text
from gpulab.extras import require_extra
from gpulab.files.progress_bar import Progress
from gpulab.fleet.job_summary import JobSummary, join, join_ranks
from gpulab.fleet.rank_files import RankFile
from gpulab.fleet.rank_summary import RankSummary
from gpulab.fleet.rank_task import FileReading, prepare_worker, summarise_file, unread_rank

_JOINED_RANKS = 32  # ranks whose summaries a worker joins before they are sent to the client
_MEMORY_FRAC = 0.9  # of this machine's memory, for all workers of a local cluster together
# Dask lets the workers return memory on each `free`: they get the pages anew for each block of text and for each large
# array, which is a fifth of their CPU time. `summarise_file` returns memory when a rank is done.
_ENVIRONMENT, _TRIMMING = "distributed.nanny.pre-spawn-environ", "MALLOC_TRIM_THRESHOLD_"
_MAX_KILLED_IN_A_ROW = (
    8  # files that are read alone and kill every worker; all others of a killed worker then count too
)


def require_libraries() -> None:
    """Raise GpulabError if the optional libraries are missing."""
    require_extra("fleet", "dask", "distributed", "fsspec", problem="The analysis of many ranks needs Dask.")


@contextmanager
def cluster_client(client: Any, tasks: int) -> Iterator[Any]:
    """Give the client, or one of a local cluster that is closed at the end: a process per core, limited in memory.

    `tasks`: number of files; no more processes are started. Raises GpulabError if no cluster starts.
    """
    if client is not None:
        yield client
        return
    import logging

    from dask import config
    from dask.system import CPU_COUNT
    from dask.utils import parse_bytes
    from distributed import Client, LocalCluster
    from distributed.system import MEMORY_LIMIT

    workers = max(1, min(CPU_COUNT, tasks))
    settings = {
        "distributed.worker.profile.enabled": False,  # its history grows with each second
        _ENVIRONMENT: {name: value for name, value in config.get(_ENVIRONMENT, {}).items() if name != _TRIMMING},
    }
    try:
        with config.set(settings):
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=int(_MEMORY_FRAC * parse_bytes(MEMORY_LIMIT) / workers),
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )
    except (RuntimeError, OSError, TimeoutError) as error:
        raise GpulabError(
            "A local Dask cluster could not be started.",
            why=str(error) or type(error).__name__,
            fix='in a script, put the call of gpulab.fleet() below  if __name__ == "__main__":  (its worker processes '
            "import the script), or pass client=",
        ) from None
    with cluster, Client(cluster) as local:
        local.run(prepare_worker)
        yield local


def summarise_files(client: Any, files: Sequence[RankFile], reading: FileReading, *, progress: bool) -> JobSummary:
    """Return the joined summary of all files. A file whose task fails, or kills its workers, is listed as unread."""
    from distributed import as_completed

    run_id = uuid4().hex[:8]
    tasks = {
        client.submit(summarise_file, file, reading, key=f"gpulab-rank-{run_id}-{n}", pure=False, retries=1): file
        for n, file in enumerate(files)
    }
    sizes = {file: file.size_bytes for file in files}
    collected = _Collected(client, tasks)
    completed = as_completed(list(tasks))
    try:
        with Progress((), visible=progress, total_bytes=sum(sizes.values())) as bar:
            for future in completed:
                if future in tasks:
                    bar.advance(sizes[tasks[future]])
                    collected.add_rank(future)
                    joining = collected.next_join()
                    if joining is not None:
                        completed.add(joining)
                else:
                    collected.add_join(future)
            collected.read_suspects_alone(reading)
    finally:
        client.cancel([*collected.open_futures])
    return collected.job


class _Collected:
    """Finished ranks, joined on the workers in groups, and these on the client."""

    def __init__(self, client: Any, tasks: dict[Any, RankFile]) -> None:
        self._client, self._tasks = client, tasks
        self._unfinished = len(tasks)
        self._ready: list[Any] = []  # finished tasks that wait for others to be joined with
        self._joining: dict[Any, list[Any]] = {}  # join -> its tasks, which must live until its result is here
        self._parts: list[tuple[int, JobSummary]] = []  # joined so far, with their level in the tree
        self._suspects: list[Any] = []  # tasks that were on killed workers; one of several kills its worker

    @property
    def open_futures(self) -> list[Any]:
        """Everything that still occupies the cluster."""
        return [*self._ready, *self._joining, *(task for task in self._tasks if not task.done())]

    @property
    def job(self) -> JobSummary:
        """All ranks that were added."""
        job = JobSummary()
        for _, part in self._parts:
            job = join(job, part)
        return job

    def add_rank(self, task: Any) -> None:
        """Add a finished task. If its result was lost with a worker since, wait until it is computed again."""
        self._unfinished -= 1
        if _error_of(task) is None:
            self._ready.append(task)
        else:
            self._add_failed(task)

    def next_join(self) -> Any:
        """Return the join of the finished ranks, if there are enough, or no more to come; else None."""
        if not self._ready or (len(self._ready) < _JOINED_RANKS and self._unfinished):
            return None
        tasks, self._ready = self._ready, []
        future = self._client.submit(_join_results, tasks, pure=False, retries=1)
        self._joining[future] = tasks
        return future

    def add_join(self, future: Any) -> None:
        """Add the result of a join; if it failed, that of each of its ranks."""
        tasks = self._joining.pop(future)
        if _error_of(future) is None:
            self._add(future.result())
            for task in tasks:
                del self._tasks[task]  # so that the workers forget their summaries
            return
        for task in tasks:  # the summaries were lost with a worker, and computing one again kills every worker
            if _error_of(task) is None:
                self._add(_join_results([task.result()]))
            else:
                self._add_failed(task)

    def _add_failed(self, task: Any) -> None:
        error = _error_of(task)
        if _is_killed(error):
            self._suspects.append(task)
        else:
            self._add(join_ranks(unread_rank(self._tasks[task], _failure(error))))

    def read_suspects_alone(self, reading: FileReading) -> None:
        """Read the files whose workers were killed again, one by one: Dask blames all tasks of a killed worker."""
        killed_in_a_row = 0
        for task in self._suspects:
            file, error = self._tasks[task], task.exception()
            if killed_in_a_row < _MAX_KILLED_IN_A_ROW:
                alone = self._client.submit(summarise_file, file, reading, key=f"{task.key}-alone", pure=False)
                error = alone.exception()
                killed_in_a_row = killed_in_a_row + 1 if error is not None and _is_killed(error) else 0
            result = alone.result() if error is None else unread_rank(file, _failure(error))
            self._add(_join_results([result]))

    def _add(self, part: JobSummary) -> None:
        """Join parts of equal level: a tree whose leaves arrive one by one."""
        level = 0
        while self._parts and self._parts[-1][0] == level:
            part = join(self._parts.pop()[1], part)
            level += 1
        self._parts.append((level, part))


def _join_results(results: Sequence[RankSummary | None]) -> JobSummary:
    return join_ranks(*(summary for summary in results if summary is not None))


def _error_of(future: Any) -> Any:
    """Return why a task failed, None if it did not. Its status alone does not tell: it may be "lost" meanwhile."""
    if future.cancelled():
        return GpulabError(
            "The task that reads this file was cancelled.",
            why="the cluster was restarted, or another program cancelled it",
            fix="analyse the job again",
        )
    return future.exception()


def _is_killed(error: Any) -> bool:
    return type(error).__name__ == "KilledWorker"


def _failure(error: Any) -> str:
    """Return why a task failed, in one sentence."""
    if _is_killed(error):
        return "every worker that read this file was killed: it may need more memory than a worker has"
    return problem_text(error) if isinstance(error, Exception) else str(error)
