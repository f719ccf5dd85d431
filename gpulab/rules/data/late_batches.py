"""Why batches come late: one cause, its rivals excluded in turn, so that a step is not explained twice."""

from __future__ import annotations

from enum import Enum

from gpulab.analysis.data.loader import Feeding
from gpulab.analysis.data.workers import crew, later_wait_ns
from gpulab.analysis.host.cpu_contention import contention
from gpulab.replay.worker_queue import demanded_ns, with_workers, worth_having
from gpulab.rules.engine.evidence import Evidence

WORTH_TELLING_FRAC = 0.05  # as TensorBoard's plug-in; under a twentieth of a step no fix is worth a change
LATE_WORTH_FRAC = 0.10  # taking a ready batch from a worker costs 0.1-1.5 ms by itself; that is not lateness
# A fetch that takes no longer than so many times its own CPU time found its batch ready: taking one over is work (0.7
# to 0.9 ms in 1.2 to 1.9 were measured), waiting for one is none.
HANDOVER = 2.5
BLOCKED_FRAC = 0.3  # workers in state D in a third of the looks: storage holds them up
WAITING_FRAC = 0.5  # workers that compute less than this wait; where they read meanwhile, it is for what they read
READING_BYTES_PER_S = 2e6  # from storage itself; what the system keeps in memory of files does not count
COMPUTING_FRAC = 0.2  # of the cores they could use: on cores that others fill too, workers that compute get no more
SATURATED_FRAC = 0.85  # a step that needs this much of all cores leaves no room for another worker
FULL_FRAC = 0.9  # the same by the load of all cores, whoever makes it
HARDLY = 1.05  # workers that could make a step no faster than this are no help
THREADED = 4  # threads a worker may compute on from which they may be what fills the cores; libraries idle on a few
THREADS_PER_CORE = 2  # of all workers together: fewer do little harm
NETWORKS = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "lustre", "ceph", "glusterfs", "gpfs", "beegfs"),
    *("wekafs", "pvfs2", "orangefs", "virtiofs", "drvfs", "fuse"),  # "fuse.sshfs", "fuse.s3fs", "fuse.drive" ...
)


class Cause(Enum):
    """Why batches come late."""

    MAIN = "the main process builds them"
    STORAGE = "whoever builds them waits for storage"
    THREADS = "workers compute on more threads than there are cores"
    ITEMS = "the items need more CPU time than there is"
    START = "they are late only where an epoch begins"
    FEW = "there are too few workers"


def why_late(evidence: Evidence) -> Cause | None:
    """The one cause of late batches, rivals excluded in turn; None where they are not late, or nobody waits.

    Storage first: who waits needs no core, whatever else is busy. Then threads, which fill cores without making more.
    """
    feeding = evidence.feeding
    late = evidence.ledger.share("loader")
    if feeding is None or late < (LATE_WORTH_FRAC if feeding.workers != 0 else WORTH_TELLING_FRAC):
        return None
    if feeding.workers == 0:
        return _why_main_is_late(evidence, feeding)
    if feeding.fetch_cpu_ns is not None and feeding.fetch_ns <= HANDOVER * feeding.fetch_cpu_ns:
        return None
    later_ns = evidence.once(later_wait_ns)
    if later_ns is not None and later_ns < LATE_WORTH_FRAC * feeding.step_ns:
        return Cause.START
    if _workers_wait_for_storage(evidence, feeding):
        return Cause.STORAGE
    if not cores_are_full(evidence, feeding):
        return Cause.FEW
    crowd = evidence.once(contention)
    threaded = (crowd.worker_threads or 1) if crowd else 1
    return Cause.THREADS if threaded >= THREADED and _too_many(evidence, feeding, threaded) else Cause.ITEMS


def _why_main_is_late(evidence: Evidence, feeding: Feeding) -> Cause:
    if _main_waits_for_storage(evidence, feeding):
        return Cause.STORAGE
    cores = evidence.run.machine.cores_allowed
    with_help = with_workers(feeding, worth_having(feeding, cores), cores)
    helps = feeding.step_ns / with_help.best_ns >= HARDLY
    return Cause.MAIN if helps or with_help.limit != "the cores" else Cause.ITEMS


def _workers_wait_for_storage(evidence: Evidence, feeding: Feeding) -> bool:
    if (feeding.blocked_frac or 0) > BLOCKED_FRAC:
        return True
    workers = evidence.once(crew)
    if workers is None or workers.busy_frac >= WAITING_FRAC:
        return False
    return _far(feeding) or (workers.read_bytes_per_s or 0) >= READING_BYTES_PER_S


def _main_waits_for_storage(evidence: Evidence, feeding: Feeding) -> bool:
    """It waits in a good part of the fetch, and reads meanwhile: by what it reads, or by cores idle for a read.

    Neither is enough alone: a core that others keep busy is not idle, and small reads of a slow disk are few bytes.
    """
    if feeding.cpu_frac is None or feeding.cpu_frac > 1 - BLOCKED_FRAC:
        return False
    crowd = evidence.once(contention)
    if crowd is not None:
        waiting_cores = (1 - feeding.cpu_frac) * feeding.fetch_ns / feeding.step_ns
        idle_for_reads = (crowd.iowait_cores or 0) >= BLOCKED_FRAC * waiting_cores
        if idle_for_reads or (crowd.read_bytes_per_s or 0) >= READING_BYTES_PER_S:
            return True
    return _far(feeding) and feeding.cpu_frac < WAITING_FRAC


def _far(feeding: Feeding) -> bool:
    kind = feeding.setup.location if feeding.setup else None
    return kind is not None and kind.split(".")[0] in NETWORKS


def cores_are_full(evidence: Evidence, feeding: Feeding) -> bool:
    """Whether more workers would only take cores from those there are: they compute, and no core is left."""
    cores, demand_ns = evidence.run.machine.cores_allowed, demanded_ns(feeding)
    if demand_ns is None or feeding.worker_cpu_ns is None:
        return False
    if cores is not None and demand_ns > SATURATED_FRAC * cores * feeding.step_ns:
        return True
    # Full by the load, which others may share in: only what workers compute suffers from that, not what they wait for.
    wanted = feeding.workers or 1
    computing = feeding.worker_cpu_ns >= COMPUTING_FRAC * min(wanted, cores or wanted) * feeding.step_ns
    return computing and (feeding.cores_frac or 0) >= FULL_FRAC


def _too_many(evidence: Evidence, feeding: Feeding, threaded: int) -> bool:
    cores = evidence.run.machine.cores_allowed
    return cores is not None and (feeding.workers or 1) * threaded > THREADS_PER_CORE * cores
