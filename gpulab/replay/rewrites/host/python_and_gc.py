"""The loop's own Python: time outside PyTorch, and garbage collection."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.host.gc_and_compilation import stall_spans
from gpulab.analysis.steps.ledger import LONG_GAP_NS
from gpulab.intervals import Spans
from gpulab.replay.graph.graph import Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.data.loading import parse_factor
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.sweep import host_step_ns
from gpulab.tables import StallKind

# Python time outside PyTorch that cannot be moved: the loop itself, and the optimizer's iteration over its
# parameters. Loops without any code of their own took 0.2-0.4 ms per step, with 180 parameters 1.0-1.3 ms.
REMAINING_NS = 400_000.0
REMAINING_NS_PER_TENSOR = 5_000.0
MIN_PYTHON_FRAC = 0.01  # of a step: less Python than this is not worth moving
MIN_STEPS_FRAC = 0.5  # with collections in a smaller share of the steps, a typical step has none


def no_python(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The loop's Python outside PyTorch runs elsewhere: before training, in a worker, or in a thread.

    Models: gaps of more than 0.2 ms in a step without any PyTorch call are removed, except for up to 0.4 ms and 5 us
    per parameter, which loops without any code of their own show too (optimizer bookkeeping, the loop itself). This
    includes time spent waiting for a service or a file.

    Cannot know: the cost of running it elsewhere, if it needs the same cores or the GIL.
    """
    return _scaled(graph, 0.0, draw)


def scale_python(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The loop's Python outside PyTorch takes F times as long: 0.5 for half the time.

    Models: gaps of more than 0.2 ms without any PyTorch call are multiplied, except for up to 0.4 ms per step and 5 us
    per parameter, which every loop has. Time both ways of doing it alone (`%timeit`); their ratio is F.

    Cannot know: whether what was timed alone costs the same inside the loop.
    """
    assert not isinstance(value, str), "the parser returns a number"
    return _scaled(graph, float(value), draw)


def no_gc(graph: Graph, value: Value, draw: Draw) -> Graph:
    """No garbage collection during steps: `gc.freeze()` after setup, `gc.disable()`, no `gc.collect()`.

    Models: the measured time of garbage collections is removed from the parts of the step in which they ran. Nothing is
    estimated.

    Cannot know: how much memory reference cycles hold until they are collected, for example once in a thousand steps.
    """
    return graph.scaled_inside(_collections(graph), 0.0)


def _scaled(graph: Graph, factor: float, draw: Draw) -> Graph:
    max_frac = remaining_python_frac(graph)
    remaining = draw.between("python that stays", *((0.0, max_frac) if factor < 1 else (max_frac, 0.0)))
    return graph.scaled_before({"python": factor + (1 - factor) * remaining})


def remaining_python_frac(graph: Graph) -> float:
    """Return the maximum share (0-1) of a step's Python time outside PyTorch that is not the loop's own code."""
    tensors = sum(each.tensors or 0 for each in graph.run.optimizers)
    return min(1.0, (REMAINING_NS + REMAINING_NS_PER_TENSOR * tensors) / max(1.0, _python_ns(graph)))


def _python_ns(graph: Graph) -> float:
    return host_step_ns(graph, graph.host.before_ns["python"])


@cached_per_run
def _collections(graph: Graph) -> Spans:
    return stall_spans(graph.run, StallKind.GC)


def _python_refusal(graph: Graph, value: Value) -> str | None:
    python_ns = _python_ns(graph)
    if python_ns < max(LONG_GAP_NS, MIN_PYTHON_FRAC * (graph.steps.step_ns or 0)):
        return "its steps have almost no Python code >= 0.2 ms between operators"
    return None


def _gc_refusal(graph: Graph, value: Value) -> str | None:
    spans = _collections(graph)
    marks = graph.host.start_ns
    first, last = marks[graph.step_start_node], marks[graph.step_end_node]
    hit = np.searchsorted(spans.start_ns, last) > np.searchsorted(spans.start_ns, first)
    if not hit.any():
        return "no garbage collection ran in its recorded steps"
    if hit.mean() < MIN_STEPS_FRAC:
        return f"garbage collection ran in only {hit.sum()} of {len(hit)} steps, so a typical step has none"
    return None


def _without_python(graph: Graph, value: Value) -> Graph:
    return graph.scaled_before({"python": 0.0})


PYTHON_REWRITES = (
    Rewrite(
        name="python",
        needs_operators=True,
        edit=scale_python,
        best_case=_without_python,
        grade="B",
        about="the loop's own Python code (>= 0.2 ms) takes F times as long",
        bound_label="no Python code in the loop",
        refusal_reason=_python_refusal,
        value_help="a factor on its time, such as 0.5",
        default=None,
        parse=parse_factor,
    ),
    Rewrite(
        name="no_python",
        needs_operators=True,
        edit=no_python,
        best_case=_without_python,
        grade="B",
        about="the loop's own Python code (>= 0.2 ms) moved elsewhere",
        bound_label="no Python code in the loop",
        refusal_reason=_python_refusal,
    ),
    Rewrite(
        name="no_gc",
        edit=no_gc,
        best_case=lambda graph, value: no_gc(graph, value, Draw()),
        grade="A",
        about="no garbage collection during steps",
        bound_label="no garbage collection",
        refusal_reason=_gc_refusal,
        cost="memory that reference cycles hold until they are collected",
        code=lambda graph, value: "gc.collect()\ngc.freeze()\ngc.disable()",
    ),
)
