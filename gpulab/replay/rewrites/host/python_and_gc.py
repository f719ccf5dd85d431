"""What the loop's own Python costs: stretches outside PyTorch, and collections of garbage."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.host.gc_and_compilation import stalled
from gpulab.analysis.steps.ledger import LONG_GAP_NS
from gpulab.intervals import Spans
from gpulab.replay.graph.graph import Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.data.loading import times
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.sweep import host_step_ns
from gpulab.tables import StallKind

# Of the stretches outside PyTorch, what is no code to move: the loop's own turns, the optimizer going through its
# parameters. Loops with none of their own Python showed 0.2-0.4 ms of it a step, with 180 parameters 1.0-1.3 ms.
STAYS_NS = 400_000.0
STAYS_NS_PER_TENSOR = 5_000.0
LITTLE_FRAC = 0.01  # of a step: less Python than that is none worth to move
IN_MOST = 0.5  # collections in fewer steps than this are none of the typical step's


def no_python(graph: Graph, value: Value, draw: Draw) -> Graph:
    """What the loop does in Python outside PyTorch is done elsewhere: before training, in a worker, in a thread.

    Models: stretches of more than 0.2 ms of a step without any PyTorch call go, but for up to 0.4 ms of them and 5 us
    for each parameter, which is what loops without any code of their own show too (the optimizer's bookkeeping, the
    turns of the loop). Waiting is taken out as well: for a service, for a file.

    Cannot know: what the other place costs, if it needs the same cores or the interpreter's lock.
    """
    return _scaled(graph, 0.0, draw)


def python(graph: Graph, value: Value, draw: Draw) -> Graph:
    """What the loop does in Python outside PyTorch takes F times as long: 0.5 for half the time.

    Models: stretches of more than 0.2 ms without any PyTorch call are multiplied, but for up to 0.4 ms a step and 5 us
    for each parameter that every loop has. Time both ways of doing it alone (`%timeit`), and their ratio is F.

    Cannot know: whether what was timed alone costs the same inside the loop.
    """
    assert not isinstance(value, str), "what was typed is a number by now"
    return _scaled(graph, float(value), draw)


def no_gc(graph: Graph, value: Value, draw: Draw) -> Graph:
    """No garbage is collected during steps: `gc.freeze()` after setting up, `gc.disable()`, no `gc.collect()`.

    Models: the time of the collections that gpulab saw goes from wherever in the step they fell. Nothing is priced.

    Cannot know: how much memory cycles of objects then hold until something collects them, once in a thousand steps,
    say.
    """
    return graph.scaled_inside(_collections(graph), 0.0)


def _scaled(graph: Graph, factor: float, draw: Draw) -> Graph:
    most = stays_frac(graph)
    stays = draw.between("python that stays", *((0.0, most) if factor < 1 else (most, 0.0)))
    return graph.scaled_before({"python": factor + (1 - factor) * stays})


def stays_frac(graph: Graph) -> float:
    """How much of a step's Python outside PyTorch is at most no code of the loop's own, 0-1."""
    tensors = sum(each.tensors or 0 for each in graph.run.optimizers)
    return min(1.0, (STAYS_NS + STAYS_NS_PER_TENSOR * tensors) / max(1.0, _python_ns(graph)))


def _python_ns(graph: Graph) -> float:
    return host_step_ns(graph, graph.host.before_ns["python"])


@once
def _collections(graph: Graph) -> Spans:
    return stalled(graph.run, StallKind.GC)


def _no_python_there(graph: Graph, value: Value) -> str | None:
    spent_ns = _python_ns(graph)
    if spent_ns < max(LONG_GAP_NS, LITTLE_FRAC * (graph.steps.step_ns or 0)):
        return "its steps spend next to no time in Python outside PyTorch"
    return None


def _no_collections(graph: Graph, value: Value) -> str | None:
    spans = _collections(graph)
    marks = graph.host.at_ns
    first, last = marks[graph.step_first], marks[graph.step_last]
    hit = np.searchsorted(spans.start_ns, last) > np.searchsorted(spans.start_ns, first)
    if not hit.any():
        return "no garbage was collected in its recorded steps"
    if hit.mean() < IN_MOST:
        return f"garbage was collected in {hit.sum()} of {len(hit)} steps only: a typical step has none to lose"
    return None


def _without_python(graph: Graph, value: Value) -> Graph:
    return graph.scaled_before({"python": 0.0})


HOST = (
    Rewrite(
        name="python",
        edit=python,
        ceiling=_without_python,
        grade="B",
        about="the loop's Python outside PyTorch takes F times as long",
        ceiling_means="even without any Python of its own",
        lacking=_no_python_there,
        takes="how many times as long it then takes, as 0.5",
        usual=None,
        parse=times,
    ),
    Rewrite(
        name="no_python",
        edit=no_python,
        ceiling=_without_python,
        grade="B",
        about="the loop's Python outside PyTorch done elsewhere",
        ceiling_means="even without any Python of its own",
        lacking=_no_python_there,
    ),
    Rewrite(
        name="no_gc",
        edit=no_gc,
        ceiling=lambda graph, value: no_gc(graph, value, Draw()),
        grade="A",
        about="no garbage collected during steps",
        ceiling_means="even without collections",
        lacking=_no_collections,
        price="memory that cycles of objects hold until something collects them",
        code=lambda graph, value: "gc.collect()\ngc.freeze()\ngc.disable()",
    ),
)
