"""Who builds the batches in a run, what that costs, and how evenly a queue of workers gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import Feeding, feeding, loader_events
from gpulab.analysis.data.prefetch_bias import PREFETCHED
from gpulab.analysis.host.cpu_contention import in_the_loop, rate
from gpulab.analysis.steps.detection import Steps
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.worker_queue import batch_ns
from gpulab.run import Run
from gpulab.tables import MarkKind

LATE_FRAC = 0.05  # workers that hold the model up for less of a step keep up with it
IDLE = 0.1  # cores that a machine uses without doing anything
SIMULATED = 240  # batches; more change the result by less than one per cent
MANY = 32  # workers beyond which more make no difference to how evenly batches come


@dataclass(frozen=True, kw_only=True)
class Source:
    """Who builds the batches in the recording, and how long that takes."""

    feeding: Feeding
    late: bool  # workers, if any, hold the model up: then they are never idle, and the step tells what a batch costs
    busy_frac: float  # of the time a batch takes, what is CPU work and no waiting
    others: float  # cores that other programs used meanwhile
    shares: Floats  # how long batches take over the typical one, as measured; empty where it was not
    prefetch: int


@once
def source(graph: Graph) -> Source | None:
    """What the run tells of its feeding; None where it used no DataLoader."""
    told = feeding(graph.run, graph.steps, graph.ledger)
    if told is None:
        return None
    built_ns = batch_ns(told)
    cpu_ns = told.worker_cpu_ns if told.workers else told.fetch_cpu_ns
    setup = told.setup
    return Source(
        feeding=told,
        late=not told.workers or told.exposed_ns > LATE_FRAC * told.step_ns,
        busy_frac=min(1.0, cpu_ns / max(1, built_ns)) if cpu_ns is not None else 1.0,
        others=_others(graph),
        shares=_shares(graph.run, graph.steps) if told.workers == 0 else np.empty(0),
        prefetch=(setup.prefetch_factor if setup else None) or PREFETCHED,
    )


def _others(graph: Graph) -> float:
    """How many cores' time went to other programs; 0 where it is not told."""
    samples, here = in_the_loop(graph.run, graph.steps), graph.run.machine.cores or graph.run.machine.cores_allowed
    load, own = samples["cpu_frac"][1:], rate(samples, "process_cpu_s")
    if here is None or own is None or np.isnan(load).all():
        return 0.0
    others = float(np.nanmean(load)) * here - own - (rate(samples, "worker_cpu_s") or 0.0)
    return others if others > IDLE else 0.0


def _shares(run: Run, steps: Steps) -> Floats:
    """How long each fetch took over the typical one, in the steps that are evidence."""
    steps, calls = steps.by_host, run.mark_rows.of_kind(MarkKind.NEXT)
    if len(calls):
        start, took = calls["start_ns"], calls["end_ns"] - calls["start_ns"]
        use = steps.plain if steps.plain_ns is not None else steps.interior
    else:
        events = loader_events(run)
        start, took, use = events["start_ns"], events["dur_ns"], steps.interior
    order = np.argsort(start, kind="stable")
    first = np.searchsorted(start[order], steps.start_ns[use])
    took = took[order][first[first < len(order)]].astype(float)
    middle = float(np.median(took)) if len(took) else 0.0
    # The worst twentieth is what the machine did meanwhile, not what a batch costs.
    return np.minimum(took / middle, np.percentile(took / middle, 95)) if middle > 0 else np.empty(0)


def unevenness(graph: Graph, count: int) -> float:
    """How much longer than evenly spread batches the measured ones take `count` workers, never more than fewer do."""
    table = _uneven(graph)
    return float(table[min(count, MANY)]) if len(table) else 1.0


@once
def _uneven(graph: Graph) -> Floats:
    told = source(graph)
    if told is None or len(told.shares) < 4:
        return np.empty(0)
    took = np.random.default_rng(0).choice(told.shares, SIMULATED)
    each = np.array([np.inf, *(queue_ns(took, count, told.prefetch) * count for count in range(1, MANY + 1))])
    # Per batch a crew must not be slower than a smaller one: chance in the order of batches is none of the model's.
    counts = np.arange(MANY + 1)
    return np.minimum.accumulate(each / np.maximum(counts, 1)) * np.maximum(counts, 1)


def queue_ns(took_ns: Floats, count: int, prefetch: int) -> float:
    """The mean time from batch to batch, where `count` workers build them in turn and nothing else takes time.

    Batch k is built by worker k mod count, and asked for when batch k - prefetch * count is taken.
    """
    ready: list[float] = []
    taken: list[float] = []
    ahead = prefetch * count
    for number, took in enumerate(took_ns.tolist()):
        free_ns = ready[number - count] if number >= count else 0.0
        asked_ns = taken[number - ahead] if number >= ahead else 0.0
        ready.append(max(free_ns, asked_ns) + took)
        taken.append(max(ready[-1], taken[-1] if taken else 0.0))
    return taken[-1] / len(taken)
