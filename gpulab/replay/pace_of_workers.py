"""A loop on a GPU that waits for its DataLoader workers does not get faster by anything but faster loading."""

from __future__ import annotations

from dataclasses import replace

from gpulab.analysis.data.loader import loading_cost
from gpulab.replay.graph.graph import WORKER_LIMIT, Graph
from gpulab.replay.rewrites.engine.cache import cached_per_run

CLEARLY_LATE_FRAC = 0.2  # of a step, waiting for workers: these are then never idle, and set the pace


def with_pace_of_workers(changed: Graph, unchanged: Graph, step_ns: float) -> Graph:
    """Return the changed graph, in which a step is no shorter than the present one if the workers set the pace.

    `step_ns`: the unchanged step. Changes of the loading itself know better, and are left alone. On a CPU, a cheaper
    step leaves the workers more of the cores; it is left alone, too.
    """
    if not unchanged.on_gpu or WORKER_LIMIT in changed.limits_ns or not _wait_for_workers(unchanged):
        return changed
    before_ns, after_ns = (float(graph.host.before_ns["loader"].sum()) for graph in (unchanged, changed))
    if abs(after_ns - before_ns) > 1e-6 * before_ns:
        return changed
    return replace(changed, limits_ns={**changed.limits_ns, WORKER_LIMIT: step_ns})


@cached_per_run
def _wait_for_workers(graph: Graph) -> bool:
    loading = loading_cost(graph.run, graph.steps, graph.ledger)
    if loading is None or not loading.workers:
        return False
    return loading.exposed_ns > CLEARLY_LATE_FRAC * loading.step_ns
