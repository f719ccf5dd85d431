"""What-if: N worker processes load the data. A steady-state queue model with measured costs.

Three things can limit the step, and the slowest does:
  the model    the step without its exposed wait for data
  the workers  one batch takes `fetch_ns` of a worker, and N workers run in parallel
  the cores    the CPU time of a batch and of the rest of the step must fit the available cores: workers need CPU time
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from gpulab.analysis.data.loader import LoadingCost
from gpulab.replay.graph.graph import CORE_LIMIT, WORKER_LIMIT

REALISED_FRAC = 0.7  # minimum share of the modelled saving that real fixes reached: 73-91 % on the ResNet-50 pairs
# The same if cores are the limit and the model computes on several threads. Threads wait for each other at the end of
# every operator, so one that shares its core with a worker delays all. On two cores, 1.06-1.55x was reached of 1.87x.
CROWDED_FRAC = 0.15
HANDOVER_NS = 300_000  # taking a ready batch from a worker: 0.1-1.5 ms measured, depending on its size
FEW_CORES = 8
MAX_WORKERS = 8  # each process takes time to start, and memory


@dataclass(frozen=True, kw_only=True)
class WorkersPrediction:
    """Predicted step with this many workers: best and worst likely time, hard lower bound, and what limits."""

    workers: int
    best_ns: int
    worst_ns: int
    floor_ns: int
    limit: str  # "the model", WORKER_LIMIT or CORE_LIMIT
    crowded: bool = False  # workers and the model's threads would share cores


def predict_workers(
    loading: LoadingCost, workers: int, cores: float | None, threads: int | None = None
) -> WorkersPrediction:
    """Predict the step with `workers` processes on `cores` cores, with the model on `threads` of them.

    None means unknown; that limit is then ignored.
    """
    limits = {"the model": loading.rest_ns, WORKER_LIMIT: ceil(batch_time_ns(loading) / workers)}
    if cores is not None and (demand_ns := cpu_time_per_step_ns(loading)) is not None:
        limits[CORE_LIMIT] = ceil(demand_ns / cores)
    limit = max(limits, key=lambda name: limits[name])
    likely_ns = min(limits[limit], loading.step_ns)
    # With data always ready, the model may be as fast as in its fastest steps.
    best_ns = min(likely_ns, max({**limits, "the model": loading.min_rest_ns or loading.rest_ns}.values()))
    saving_ns = loading.step_ns - likely_ns
    crowded = limit == CORE_LIMIT and (threads or 1) > 1
    realised = CROWDED_FRAC if crowded else REALISED_FRAC
    handover_ns = (
        0 if loading.workers else loading.batches * HANDOVER_NS
    )  # present workers' batches are handed over already
    worst_ns = round(loading.step_ns - realised * saving_ns) + handover_ns
    return WorkersPrediction(
        workers=workers,
        best_ns=best_ns,
        worst_ns=max(best_ns, worst_ns),
        floor_ns=min(loading.rest_ns, loading.min_rest_ns or loading.rest_ns, best_ns),
        limit=limit,
        crowded=crowded,
    )


def batch_time_ns(loading: LoadingCost) -> int:
    """Time to load the batches of a step: of the main process, or of one worker if workers are late and never idle."""
    return loading.workers * loading.step_ns if loading.workers else loading.fetch_ns


def cpu_time_per_step_ns(loading: LoadingCost) -> int | None:
    """CPU time of a batch and of the rest of its step, in all processes; None if unknown."""
    batch_cpu_ns = loading.worker_cpu_ns if loading.workers else loading.fetch_cpu_ns
    if batch_cpu_ns is None or loading.rest_cpu_ns is None:
        return None
    return batch_cpu_ns + loading.rest_cpu_ns


def recommended_workers(loading: LoadingCost, cores: float | None) -> int:
    """Return how many workers to start with: twice the number that keeps up, but no more than the cores can run.

    Workers that wait rather than compute need no core of their own.
    """
    least = 2 if cores is not None and cores < FEW_CORES else 4
    count = max(least, ceil(2 * loading.fetch_ns / loading.rest_ns))
    if cores is not None:
        cpu_frac = loading.cpu_frac if loading.cpu_frac is not None else 1.0
        runnable = max(1, int(cores / cpu_frac)) if cpu_frac > 0.05 else MAX_WORKERS
        count = min(count, max(runnable, 1))
    return min(count, MAX_WORKERS)


def workers_to_keep_up(loading: LoadingCost) -> int:
    """Return how many workers keep up with the model if the present ones do not: one batch every `rest_ns`."""
    return max((loading.workers or 0) + 1, ceil(batch_time_ns(loading) / loading.rest_ns))
