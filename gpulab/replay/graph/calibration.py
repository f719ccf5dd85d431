"""Calibrate a graph to the un-profiled step time: recording slows calls down, and predictions are about real steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab.analysis.data.loader import Feeding
from gpulab.analysis.host.launches import in_interior
from gpulab.replay.graph.graph import CALLING, Graph
from gpulab.replay.sweep import swept
from gpulab.tables import RUNTIME_KINDS, Kind

LEAST, MOST = 0.2, 1.0  # real share of a recorded call's cost: profilers add up to four times the cost itself
# Overhead of recording per event: 0.7 us measured on this CPU without a GPU; up to 4 us reported with one.
ADDED_CPU_NS, ADDED_GPU_NS = 1_500, 4_000
UNKNOWN = (0.6, 1.0)  # range of that share if it cannot be measured
FELT_FRAC = 0.01  # if the step changes by less over that range, the share cannot be determined
ROUNDS = 9


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A graph whose step time is the un-profiled one, if that was measured."""

    graph: Graph
    calling: float  # real share of the recorded cost of calls, 0-1
    known: bool  # False: device work hides the cost of calls, so the share is somewhere in UNKNOWN


def calibrated(graph: Graph, feeding: Feeding | None = None) -> Calibrated:
    """Scale the cost of calls so that the replayed step time matches un-profiled steps."""
    target = graph.steps.plain_ns
    traced = graph.steps.traced_ns
    if feeding is not None and feeding.traced_fetch_ns and feeding.fetch_ns and target is not None:
        graph = graph.scaled_before({"loader": feeding.fetch_ns / feeding.traced_fetch_ns})
    recorded_ns = swept(graph).step_ns
    if target is None or traced is None:
        # All steps were profiled: predictions are then about profiled steps, comparable with another recording.
        return Calibrated(graph, 1.0, True)
    least = _least_share(graph)
    least_ns = swept(with_calling(graph, least)).step_ns
    if recorded_ns - least_ns < FELT_FRAC * recorded_ns and abs(target / recorded_ns - 1) < 2 * FELT_FRAC:
        return Calibrated(graph, 1.0, False)
    if least_ns <= target <= recorded_ns:
        share = _bisect(lambda share: swept(with_calling(graph, share)).step_ns, target, least, MOST)
        return Calibrated(with_calling(graph, share), share, True)
    share = least if target < least_ns else MOST
    scaled = with_calling(graph, share)
    host_factor = _bisect(lambda factor: swept(with_all(scaled, factor)).step_ns, target, 0.3, 3.0)
    return Calibrated(with_all(scaled, host_factor), share, True)


def _least_share(graph: Graph) -> float:
    """Return the smallest possible real share of call cost, if recording added its maximum to each event."""
    inside = graph.step_of >= 0
    calls_ns = sum(float(graph.host.before_ns[part][inside].sum()) for part in CALLING if part in graph.host.before_ns)
    calls_ns += float(graph.host.call_ns[inside].sum())
    recorded = len(in_interior(graph.run.event_rows.of_kind(Kind.OP, *RUNTIME_KINDS), graph.steps.by_host))
    overhead_ns = recorded * (ADDED_GPU_NS if graph.on_gpu else ADDED_CPU_NS)
    return min(MOST, max(LEAST, 1 - overhead_ns / max(1.0, calls_ns)))


def with_calling(graph: Graph, share: float) -> Graph:
    """Return the graph with the cost of calls multiplied."""
    return graph.scaled_before(dict.fromkeys(CALLING, share)).with_host(call_ns=graph.host.call_ns * share)


def with_all(graph: Graph, factor: float) -> Graph:
    """Return the graph with all host work multiplied."""
    scaled = graph.scaled_before(dict.fromkeys(graph.host.before_ns, factor))
    return scaled.with_host(call_ns=graph.host.call_ns * factor)


def _bisect(step_ns: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Find where a rising function reaches a target, by bisection; an end of the range if it does not."""
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if step_ns(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
