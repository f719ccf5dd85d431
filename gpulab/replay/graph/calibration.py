"""From the recorded step to the real one: recording adds to the cost of calls, and what-ifs are about the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab.analysis.data.loader import Feeding
from gpulab.analysis.host.launches import in_interior
from gpulab.replay.graph.graph import CALLING, Graph
from gpulab.replay.sweep import swept
from gpulab.tables import RUNTIME_KINDS, Kind

LEAST, MOST = 0.2, 1.0  # share of a recorded call's cost that is its own: profilers add up to four times as much
# What recording adds to each event: 0.7 us was measured on this CPU without a GPU; with one, up to 4 us were reported.
ADDED_CPU_NS, ADDED_GPU_NS = 1_500, 4_000
UNKNOWN = (0.6, 1.0)  # the same where nothing measured tells
FELT_FRAC = 0.01  # a step that moves by less over that whole range does not tell the share
ROUNDS = 9


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A graph whose step is the un-profiled one, where that was measured."""

    graph: Graph
    calling: float  # what is left of the recorded cost of calls, 0-1
    known: bool  # False: the device hides what calls cost, so it lies somewhere in UNKNOWN


def calibrated(graph: Graph, feeding: Feeding | None = None) -> Calibrated:
    """The graph with calls as cheap as un-profiled steps say they are."""
    target = graph.steps.plain_ns
    traced = graph.steps.traced_ns
    if feeding is not None and feeding.traced_fetch_ns and feeding.fetch_ns and target is not None:
        graph = graph.scaled_before({"loader": feeding.fetch_ns / feeding.traced_fetch_ns})
    recorded_ns = swept(graph).step_ns
    if target is None or traced is None:
        # Only recorded steps were seen: what-ifs are about those, as another recording of the changed loop shows them.
        return Calibrated(graph, 1.0, True)
    least = _least(graph)
    least_ns = swept(with_calling(graph, least)).step_ns
    if recorded_ns - least_ns < FELT_FRAC * recorded_ns and abs(target / recorded_ns - 1) < 2 * FELT_FRAC:
        return Calibrated(graph, 1.0, False)
    if least_ns <= target <= recorded_ns:
        share = _solved(lambda share: swept(with_calling(graph, share)).step_ns, target, least, MOST)
        return Calibrated(with_calling(graph, share), share, True)
    share = least if target < least_ns else MOST
    called = with_calling(graph, share)
    rest = _solved(lambda factor: swept(with_all(called, factor)).step_ns, target, 0.3, 3.0)
    return Calibrated(with_all(called, rest), share, True)


def _least(graph: Graph) -> float:
    """What is left of the cost of calls at the least, if recording added as much to each as it ever does."""
    inside = graph.step_of >= 0
    calling = sum(float(graph.host.before_ns[part][inside].sum()) for part in CALLING if part in graph.host.before_ns)
    calling += float(graph.host.own_ns[inside].sum())
    recorded = len(in_interior(graph.run.event_rows.of_kind(Kind.OP, *RUNTIME_KINDS), graph.steps.by_host))
    added = recorded * (ADDED_GPU_NS if graph.on_gpu else ADDED_CPU_NS)
    return min(MOST, max(LEAST, 1 - added / max(1.0, calling)))


def with_calling(graph: Graph, share: float) -> Graph:
    """The graph with the cost of calls multiplied."""
    return graph.scaled_before(dict.fromkeys(CALLING, share)).with_host(own_ns=graph.host.own_ns * share)


def with_all(graph: Graph, factor: float) -> Graph:
    """The graph with all work of the host multiplied."""
    scaled = graph.scaled_before(dict.fromkeys(graph.host.before_ns, factor))
    return scaled.with_host(own_ns=graph.host.own_ns * factor)


def _solved(step_ns: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a rising function reaches a target, by halving; an end of the range where it does not."""
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if step_ns(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
