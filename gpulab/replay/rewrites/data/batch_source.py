"""Measured cost of loading a batch in a run, and how evenly a queue of workers delivers batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import LoadingCost, loader_events, loading_cost
from gpulab.analysis.data.prefetch_bias import DEFAULT_PREFETCH_FACTOR
from gpulab.analysis.host.cpu_contention import counter_rate, host_samples_in_loop
from gpulab.analysis.steps.detection import Steps
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.worker_count_model import batch_time_ns
from gpulab.run import Run
from gpulab.tables import MarkKind

LATE_FRAC = 0.05  # of a step: workers that delay the model by less keep up with it
IDLE_CORES = 0.1  # cores in use on an idle machine
SIMULATED_BATCHES = 240  # batches; more batches change the result by less than one per cent
MAX_WORKERS = 32  # more workers than this do not change how evenly batches arrive


@dataclass(frozen=True, kw_only=True)
class BatchLoading:
    """Who loads the batches in the recording, and the time it takes."""

    loading: LoadingCost
    too_few_workers: (
        bool  # workers, if any, delay the model: then they are never idle, and the step time is the cost of a batch
    )
    busy_frac: float  # CPU share of the time to load a batch; the rest is waiting
    cores_of_others: float  # cores that other programs used
    relative_durations: Floats  # measured load time of batches relative to the median; empty if not measured
    prefetch: int


@cached_per_run
def batch_loading(graph: Graph) -> BatchLoading | None:
    """Return the data loading of the run; None if it uses no DataLoader."""
    loading = loading_cost(graph.run, graph.steps, graph.ledger)
    if loading is None:
        return None
    load_ns = batch_time_ns(loading)
    cpu_ns = loading.worker_cpu_ns if loading.workers else loading.fetch_cpu_ns
    setup = loading.loader
    return BatchLoading(
        loading=loading,
        too_few_workers=not loading.workers or loading.exposed_ns > LATE_FRAC * loading.step_ns,
        busy_frac=min(1.0, cpu_ns / max(1, load_ns)) if cpu_ns is not None else 1.0,
        cores_of_others=_cores_of_others(graph),
        relative_durations=_relative_durations(graph.run, graph.steps) if loading.workers == 0 else np.empty(0),
        prefetch=(setup.prefetch_factor if setup else None) or DEFAULT_PREFETCH_FACTOR,
    )


def _cores_of_others(graph: Graph) -> float:
    """Return how many cores other programs used; 0 if unknown."""
    samples, cores = (
        host_samples_in_loop(graph.run, graph.steps),
        graph.run.machine.cores or graph.run.machine.cores_allowed,
    )
    cpu_frac, own_cores = samples["cpu_frac"][1:], counter_rate(samples, "process_cpu_s")
    if cores is None or own_cores is None or np.isnan(cpu_frac).all():
        return 0.0
    others = float(np.nanmean(cpu_frac)) * cores - own_cores - (counter_rate(samples, "worker_cpu_s") or 0.0)
    return others if others > IDLE_CORES else 0.0


def _relative_durations(run: Run, steps: Steps) -> Floats:
    """Return the duration of each fetch in steady-state steps, relative to the median."""
    steps, calls = steps.host_steps, run.mark_rows.of_kind(MarkKind.NEXT)
    if len(calls):
        start, durations = calls["start_ns"], calls["end_ns"] - calls["start_ns"]
        selected = steps.unprofiled if steps.unprofiled_ns is not None else steps.interior
    else:
        events = loader_events(run)
        start, durations, selected = events["start_ns"], events["dur_ns"], steps.interior
    order = np.argsort(start, kind="stable")
    next_fetch = np.searchsorted(start[order], steps.start_ns[selected])
    durations = durations[order][next_fetch[next_fetch < len(order)]].astype(float)
    middle = float(np.median(durations)) if len(durations) else 0.0
    # The slowest 5 % are caused by other load on the machine, not by the batch.
    return np.minimum(durations / middle, np.percentile(durations / middle, 95)) if middle > 0 else np.empty(0)


def variation_factor(graph: Graph, count: int) -> float:
    """Factor by which measured batches take `count` workers longer than evenly sized ones would."""
    table = _unevenness_table(graph)
    return float(table[min(count, MAX_WORKERS)]) if len(table) else 1.0


@cached_per_run
def _unevenness_table(graph: Graph) -> Floats:
    loading = batch_loading(graph)
    if loading is None or len(loading.relative_durations) < 4:
        return np.empty(0)
    durations = np.random.default_rng(0).choice(loading.relative_durations, SIMULATED_BATCHES)
    times_ns = np.array(
        [
            np.inf,
            *(simulate_queue_ns(durations, count, loading.prefetch) * count for count in range(1, MAX_WORKERS + 1)),
        ]
    )
    # More workers must not be slower per batch than fewer: that would only be noise from the order of the batches.
    counts = np.arange(MAX_WORKERS + 1)
    return np.minimum.accumulate(times_ns / np.maximum(counts, 1)) * np.maximum(counts, 1)


def simulate_queue_ns(load_ns: Floats, count: int, prefetch: int) -> float:
    """Return the mean time between batches if `count` workers load them round-robin and nothing else takes time.

    Worker k mod count loads batch k; the request is sent when batch k - prefetch * count is taken.
    """
    ready_ns: list[float] = []
    taken_ns: list[float] = []
    queue_size = prefetch * count
    for index, duration in enumerate(load_ns.tolist()):
        free_ns = ready_ns[index - count] if index >= count else 0.0
        requested_ns = taken_ns[index - queue_size] if index >= queue_size else 0.0
        ready_ns.append(max(free_ns, requested_ns) + duration)
        taken_ns.append(max(ready_ns[-1], taken_ns[-1] if taken_ns else 0.0))
    return taken_ns[-1] / len(taken_ns)
