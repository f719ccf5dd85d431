"""What-if: the batches are built by N worker processes. A queue model of the steady state, from measured costs.

Three things can limit the step, and the slowest does:
  the model    the step without its exposed wait for data
  the workers  one batch takes `fetch_ns` of a worker, and N of them work side by side
  the cores    the CPU time of a batch and of the rest of the step must fit the cores there are: workers are not free
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from gpulab.analysis.data.loader import Feeding

REALISED_FRAC = 0.7  # share of the modelled saving that real fixes reached at least: 73-91 % on the ResNet-50 pairs
# The same where the cores limit and the model computes on several threads: these wait for one another at the end of
# every operator, so one that shares its core with a worker holds up all. On two cores 1.06-1.55x came of 1.87x.
CROWDED_FRAC = 0.15
HANDOVER_NS = 300_000  # taking a ready batch from a worker: 0.1-1.5 ms were seen, by its size
FEW_CORES = 8
MOST_WORKERS = 8  # each is a process to start and to keep in memory


@dataclass(frozen=True, kw_only=True)
class WorkersPrediction:
    """The step with this many workers: the best and the worst that is likely, the hard floor, and what limits."""

    workers: int
    best_ns: int
    worst_ns: int
    floor_ns: int
    limit: str  # "the model", "the workers" or "the cores"
    crowded: bool = False  # workers and the model's threads would share cores


def with_workers(feeding: Feeding, workers: int, cores: float | None, threads: int | None = None) -> WorkersPrediction:
    """Predict the step with `workers` processes on `cores` cores, the model on `threads` of them.

    None: not known, so not counted.
    """
    limits = {"the model": feeding.rest_ns, "the workers": ceil(batch_ns(feeding) / workers)}
    if cores is not None and (demand_ns := demanded_ns(feeding)) is not None:
        limits["the cores"] = ceil(demand_ns / cores)
    limit = max(limits, key=lambda name: limits[name])
    likely_ns = min(limits[limit], feeding.step_ns)
    # Fed without a pause the model may be as fast as it was in its fastest steps.
    best_ns = min(likely_ns, max({**limits, "the model": feeding.least_rest_ns or feeding.rest_ns}.values()))
    saving_ns = feeding.step_ns - likely_ns
    crowded = limit == "the cores" and (threads or 1) > 1
    realised = CROWDED_FRAC if crowded else REALISED_FRAC
    worst_ns = min(feeding.step_ns, round(feeding.step_ns - realised * saving_ns) + HANDOVER_NS)
    return WorkersPrediction(
        workers=workers,
        best_ns=best_ns,
        worst_ns=max(best_ns, worst_ns),
        floor_ns=min(feeding.rest_ns, feeding.least_rest_ns or feeding.rest_ns, best_ns),
        limit=limit,
        crowded=crowded,
    )


def batch_ns(feeding: Feeding) -> int:
    """For how long one batch keeps whoever builds it: the main process, or workers that are late and never idle."""
    return feeding.workers * feeding.step_ns if feeding.workers else feeding.fetch_ns


def demanded_ns(feeding: Feeding) -> int | None:
    """CPU time that a batch and the rest of its step need, whoever spends it; None where it was not measured."""
    batch_cpu_ns = feeding.worker_cpu_ns if feeding.workers else feeding.fetch_cpu_ns
    if batch_cpu_ns is None or feeding.rest_cpu_ns is None:
        return None
    return batch_cpu_ns + feeding.rest_cpu_ns


def worth_having(feeding: Feeding, cores: float | None) -> int:
    """How many workers to start with: enough to keep up twice over, no more than the cores can carry.

    Workers that wait rather than compute need no core of their own.
    """
    least = 2 if cores is not None and cores < FEW_CORES else 4
    wanted = max(least, ceil(2 * feeding.fetch_ns / feeding.rest_ns))
    if cores is not None:
        busy = feeding.cpu_frac if feeding.cpu_frac is not None else 1.0
        carried = max(1, int(cores / busy)) if busy > 0.05 else MOST_WORKERS
        wanted = min(wanted, max(carried, 1))
    return min(wanted, MOST_WORKERS)


def needed(feeding: Feeding) -> int:
    """How many workers keep up with the model, where those there are do not: one batch is wanted every `rest_ns`."""
    return max((feeding.workers or 0) + 1, ceil(batch_ns(feeding) / feeding.rest_ns))
