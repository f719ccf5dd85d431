"""Calibrate a graph to the un-profiled step time: recording slows calls down, and predictions are about real steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab.analysis.data.loader import LoadingCost
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.replay.graph.graph import CALL_PARTS, Graph
from gpulab.replay.sweep import Schedule, sweep
from gpulab.tables import RUNTIME_KINDS, EventKind

MIN_SHARE, MAX_SHARE = 0.2, 1.0  # real share of a recorded call's cost: profilers add up to four times the cost itself
# Overhead of recording per event: 0.7 us measured on this CPU without a GPU; up to 4 us reported with one.
OVERHEAD_CPU_NS, OVERHEAD_GPU_NS = 1_500, 4_000
UNKNOWN_SHARE = 0.6  # the least share if it cannot be measured; more, if recording cannot have added that much
MIN_EFFECT_FRAC = 0.01  # if the step changes by less over that range, the share cannot be determined
ROUNDS = 9


@dataclass(frozen=True, eq=False)
class Calibration:
    """A graph whose step time is the un-profiled one, if that was measured."""

    graph: Graph
    call_cost_frac: float  # real share of the recorded cost of calls, 0-1
    share_range: tuple[float, float] | None = (
        None  # range of that share if other work hides the cost of calls; else None
    )
    certain_call_frac: float = 1.0  # of the cost of calls in `graph`, 0-1: less if no step ran without the profiler


def calibrate(graph: Graph, loading: LoadingCost | None = None, replayed: Schedule | None = None) -> Calibration:
    """Scale the cost of calls so that the replayed step time matches un-profiled steps.

    `replayed`: the schedule of this graph, if it is known.
    """
    target = graph.steps.unprofiled_ns
    traced = graph.steps.traced_ns
    is_loading_measured = False  # without the profiler
    if loading is not None and loading.traced_fetch_ns and loading.fetch_ns and target is not None:
        graph = graph.scaled_before({"loader": loading.fetch_ns / loading.traced_fetch_ns})
        is_loading_measured, replayed = True, None
    recorded_ns = (replayed or sweep(graph)).step_ns
    least = _least_share(graph)
    least_ns = sweep(scale_calls(graph, least)).step_ns
    is_hidden = recorded_ns - least_ns < MIN_EFFECT_FRAC * recorded_ns  # other work hides the cost of calls
    share_range = (max(UNKNOWN_SHARE, least), MAX_SHARE) if is_hidden else None
    if target is None or traced is None:
        # All steps were profiled: predictions are then about profiled steps, comparable with another recording. Bounds
        # hold for the steps without the profiler, too. So do predictions if the host ran ahead: its calls were hidden.
        return Calibration(graph, 1.0, share_range if graph.steps.host is not None else None, certain_call_frac=least)
    if is_hidden and abs(target / recorded_ns - 1) < 2 * MIN_EFFECT_FRAC:
        return Calibration(graph, 1.0, share_range)
    if least_ns <= target <= recorded_ns:
        share = _bisect(lambda share: sweep(scale_calls(graph, share)).step_ns, target, least, MAX_SHARE)
        return Calibration(scale_calls(graph, share), share)
    share = least if target < least_ns else MAX_SHARE
    # Steps that take longer than the traced ones do so elsewhere. Shorter ones are scaled as a whole: predictions of
    # workers, which slow down the rest of the step, are more accurate with it (42 instead of 38 of 51 in their range).
    unscaled = ("loader",) if is_loading_measured and target > recorded_ns else ()
    scaled = scale_calls(graph, share)
    host_factor = _bisect(lambda factor: sweep(scale_host(scaled, factor, unscaled)).step_ns, target, 0.3, 3.0)
    return Calibration(scale_host(scaled, host_factor, unscaled), share)


def _least_share(graph: Graph) -> float:
    """Return the smallest possible real share of call cost, if recording added its maximum to each event."""
    inside = graph.step_of >= 0
    calls_ns = sum(
        float(graph.host.before_ns[part][inside].sum()) for part in CALL_PARTS if part in graph.host.before_ns
    )
    calls_ns += float(graph.host.call_ns[inside].sum())
    recorded = len(rows_in_interior(graph.run.event_rows.of_kind(EventKind.OP, *RUNTIME_KINDS), graph.steps.host_steps))
    overhead_ns = recorded * (OVERHEAD_GPU_NS if graph.on_gpu else OVERHEAD_CPU_NS)
    return min(MAX_SHARE, max(MIN_SHARE, 1 - overhead_ns / max(1.0, calls_ns)))


def scale_calls(graph: Graph, share: float) -> Graph:
    """Return the graph with the cost of calls multiplied."""
    return graph.scaled_before(dict.fromkeys(CALL_PARTS, share)).with_host(call_ns=graph.host.call_ns * share)


def scale_host(graph: Graph, factor: float, unscaled: tuple[str, ...] = ()) -> Graph:
    """Return the graph with all host work multiplied, but for the unscaled parts."""
    scaled = graph.scaled_before({part: factor for part in graph.host.before_ns if part not in unscaled})
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
