"""Find the one cause of late batches; rival causes are excluded one by one, so that a step is not explained twice."""

from __future__ import annotations

from enum import Enum

from gpulab.analysis.data.loader import LoadingCost
from gpulab.analysis.data.workers import mean_later_wait_ns, worker_activity
from gpulab.analysis.host.cpu_contention import contention
from gpulab.replay.graph.graph import CORE_LIMIT
from gpulab.replay.worker_count_model import cpu_time_per_step_ns, predict_workers, recommended_workers
from gpulab.rules.engine.evidence import Evidence

_MIN_LOADER_FRAC = 0.05  # as in TensorBoard's profiler plug-in; a fix for less of a step is not worth the effort
_MIN_WAIT_FRAC = 0.10  # with workers: fetching a ready batch costs 0.1-1.5 ms, which is no wait
# A fetch that takes at most this many times its own CPU time found its batch ready: fetching a ready batch costs CPU
# time (measured: 0.7 to 0.9 ms of 1.2 to 1.9 ms), waiting for one does not.
_FETCH_TIME_PER_CPU_TIME = 2.5
# Ready batches all take about the same time. Of late ones, some are ready, because workers finish together.
_FETCH_TIME_PER_QUICK_FETCH = 1.6
BLOCKED_FRAC = 0.3  # workers in state D in a third of the samples: they wait for storage
WAITING_FRAC = 0.5  # workers that compute less than this wait; if they also read, they wait for storage
_READING_BYTES_PER_S = 2e6  # read from the storage device; reads from the page cache do not count
_COMPUTING_FRAC = 0.2  # of the cores they could use: computing workers get no more on cores that others fill, too
_SATURATED_FRAC = 0.85  # a step that needs this much of all cores has no capacity for another worker
FULL_FRAC = 0.9  # the same by the load of all cores, from any process
_MIN_SPEEDUP = 1.05  # workers that promise less are no fix
_MANY_THREADS = 4  # threads per worker from which they may saturate the cores; libraries keep a few idle threads
_THREADS_PER_CORE = 2  # of all workers together: fewer do little harm
_NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "lustre", "ceph", "glusterfs", "gpfs", "beegfs"),
    *("wekafs", "pvfs2", "orangefs", "virtiofs", "drvfs", "fuse"),  # "fuse.sshfs", "fuse.s3fs", "fuse.drive" ...
)


# The rules that find a cause of late batches, one at most in a run. Each explains why the loop waits for data.
LATE_BATCH_RULES = ("no_workers", "too_few_workers", "slow_storage", "cpu_bound_loading")


class LateBatchCause(Enum):
    """Why batches are late."""

    MAIN_PROCESS = "the main process loads them"
    STORAGE = "data loading waits for storage"
    THREADS = "workers compute on more threads than there are cores"
    CPU_TIME = "data loading is CPU-bound"
    EPOCH_START = "they are late only at the start of an epoch"
    TOO_FEW_WORKERS = "there are too few workers"


def cause_of_late_batches(evidence: Evidence) -> LateBatchCause | None:
    """Return the one cause of late batches; None if batches are not late.

    Storage is checked first: a worker that waits for storage needs no core, whatever the load. Then threads, which fill
    the cores without getting more work done.
    """
    loading = evidence.loading
    wait_frac = evidence.ledger.typical_frac("loader")
    if loading is None or wait_frac < (_MIN_WAIT_FRAC if loading.workers != 0 else _MIN_LOADER_FRAC):
        return None
    if loading.workers == 0:
        return _cause_without_workers(evidence, loading)
    if _are_ready(loading):
        return None
    wait_after_start_ns = evidence.cached(mean_later_wait_ns)
    if wait_after_start_ns is not None and wait_after_start_ns < _MIN_WAIT_FRAC * loading.step_ns:
        return LateBatchCause.EPOCH_START
    if _workers_wait_for_storage(evidence, loading):
        return LateBatchCause.STORAGE
    if not _cores_are_full(evidence, loading):
        return LateBatchCause.TOO_FEW_WORKERS
    cpu = evidence.cached(contention)
    threads_per_worker = (cpu.worker_threads or 1) if cpu else 1
    return (
        LateBatchCause.THREADS
        if threads_per_worker >= _MANY_THREADS and _more_threads_than_cores(evidence, loading, threads_per_worker)
        else LateBatchCause.CPU_TIME
    )


def _are_ready(loading: LoadingCost) -> bool:
    """Whether batches of workers are ready when they are fetched: a fetch then computes, and all take equally long.

    Batches that are late for less than a tenth of a step count as ready: more workers cannot save more than that.
    """
    if loading.fetch_cpu_ns is None or loading.quick_fetch_ns is None:
        return False
    computing_ns = _FETCH_TIME_PER_CPU_TIME * loading.fetch_cpu_ns
    ready_ns = min(computing_ns, loading.quick_fetch_ns)
    if loading.fetch_ns - ready_ns < _MIN_WAIT_FRAC * loading.step_ns:
        return True
    return loading.fetch_ns <= min(computing_ns, _FETCH_TIME_PER_QUICK_FETCH * loading.quick_fetch_ns)


def _cause_without_workers(evidence: Evidence, loading: LoadingCost) -> LateBatchCause:
    if _main_waits_for_storage(evidence, loading):
        return LateBatchCause.STORAGE
    cores = evidence.run.machine.cores_allowed
    prediction = predict_workers(loading, recommended_workers(loading, cores), cores)
    helps = loading.step_ns / prediction.best_ns >= _MIN_SPEEDUP
    return LateBatchCause.MAIN_PROCESS if helps or prediction.limit != CORE_LIMIT else LateBatchCause.CPU_TIME


def _workers_wait_for_storage(evidence: Evidence, loading: LoadingCost) -> bool:
    if (loading.blocked_frac or 0) > BLOCKED_FRAC:
        return True
    workers = evidence.cached(worker_activity)
    if workers is None or workers.busy_frac >= WAITING_FRAC:
        return False
    return _on_network_file_system(loading) or (workers.read_bytes_per_s or 0) >= _READING_BYTES_PER_S


def _main_waits_for_storage(evidence: Evidence, loading: LoadingCost) -> bool:
    """Whether the main thread waits for much of the fetch and reads meanwhile: by bytes read, or by cores in I/O wait.

    Either signal suffices, as neither is always there: a core that others keep busy is not idle, and small reads from a
    slow disk are few bytes.
    """
    if loading.cpu_frac is None or loading.cpu_frac > 1 - BLOCKED_FRAC:
        return False
    cpu = evidence.cached(contention)
    if cpu is not None:
        waiting_cores = (1 - loading.cpu_frac) * loading.fetch_ns / loading.step_ns
        idle_for_reads = (cpu.iowait_cores or 0) >= BLOCKED_FRAC * waiting_cores
        if idle_for_reads or (cpu.read_bytes_per_s or 0) >= _READING_BYTES_PER_S:
            return True
    return _on_network_file_system(loading) and loading.cpu_frac < WAITING_FRAC


def _on_network_file_system(loading: LoadingCost) -> bool:
    kind = loading.loader.location if loading.loader else None
    return kind is not None and kind.split(".")[0] in _NETWORK_FILE_SYSTEMS


def _cores_are_full(evidence: Evidence, loading: LoadingCost) -> bool:
    """Whether more workers would only take cores from the present ones."""
    cores, demand_ns = evidence.run.machine.cores_allowed, cpu_time_per_step_ns(loading)
    if demand_ns is None or loading.worker_cpu_ns is None:
        return False
    if cores is not None and demand_ns > _SATURATED_FRAC * cores * loading.step_ns:
        return True
    # The load may come from other processes, too: it slows down workers that compute, not those that wait.
    workers = loading.workers or 1
    computing = loading.worker_cpu_ns >= _COMPUTING_FRAC * min(workers, cores or workers) * loading.step_ns
    return computing and (loading.cores_frac or 0) >= FULL_FRAC


def _more_threads_than_cores(evidence: Evidence, loading: LoadingCost, threads_per_worker: int) -> bool:
    cores = evidence.run.machine.cores_allowed
    return cores is not None and (loading.workers or 1) * threads_per_worker > _THREADS_PER_CORE * cores
