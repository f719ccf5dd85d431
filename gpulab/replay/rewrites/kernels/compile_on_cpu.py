"""What compiling, a fused optimizer and a larger batch do to a step that the CPU computes."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.data.loader import leading_loader
from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.host.cpu_math import MATH
from gpulab.analysis.kernels.optimizers import updating_on_cpu
from gpulab.intervals import Spans, intersect, subtract, union
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.engine.graph_work import no_model_spans, optimizer_spans
from gpulab.replay.rewrites.host.python_and_gc import stays_frac
from gpulab.tables import Kind

CALLS = ("dispatch", "glue")
GRAPHS = 2  # entered in a step: the forward pass, and what autograd makes of it
ENTERED_NS = (30_000.0, 120_000.0)  # guards, and handing tensors to compiled code, each time
KEPT_CALLS = (0.05, 0.5)  # of the calls of operators, what compiled code still calls: matrix products, views, buffers
KEPT_MEMORY = (0.3, 0.95)  # of the time of elementwise operators, after fusion

# Of the calls inside the optimizer's step, what a fused one leaves: one operator, and the search through parameters.
FUSED_CALLS = (0.02, 0.25)
# Numbers read and written for each parameter: one operator after the other, and fused. Adam: lerp_, mul_, addcmul_,
# sqrt, div, add_, addcdiv_. What is in a cache, or divides much, follows these numbers less closely.
TRAFFIC = {"Adam": (18, 7), "AdamW": (20, 7), "Adagrad": (11, 5)}
FUSED_MEMORY = (0.15, 0.9)  # of any other method
# How the time of its operators follows those numbers. Tensors from 128 KiB on get new pages from the system for each
# operator's result, which costs several times the arithmetic; a fused optimizer makes none.
FOLLOWS, FOLLOWS_LARGE = (0.5, 1.8), (0.1, 1.4)
LARGE_ELEMENTS = 32_768
# SGD reads and writes 8 numbers with momentum and 5 fused; measured, it gained nothing or little from it.
SGD_MEMORY, PLAIN_SGD_MEMORY = (0.7, 1.3), (0.8, 1.1)
MOMENTUM = 2  # operators for each parameter from which SGD has momentum: without, its one operator is a fused one

# A batch N times as large takes operators N to this power as long. Matrix products read their weights once for any
# batch, so a small batch gains much; convolutions have few; work on weights themselves (the optimizer) stays as it is.
PRODUCT_POWER, CONVOLUTION_POWER, OTHER_POWER = (0.0, 1.0), (0.85, 1.1), (0.8, 1.2)
FEW_ROWS, MANY_ROWS = 64, 256  # samples after which products are still bound by their weights, or by arithmetic
FEW_POWER, MANY_POWER = (0.0, 0.5), (0.6, 1.0)
CALL_NS = 8_000.0  # of an operator that is long enough to count as computing
SMALL_SHARE = (0.0, 0.03)  # of small operators, what is arithmetic and grows with the batch; the rest is their call

_PRODUCTS = ("mkl::", "mkldnn::", "aten::mkldnn_", "aten::_scaled_dot_product", "aten::_flash_attention")


def compiled_on_cpu(graph: Graph, draw: Draw) -> Graph:
    """Operators of the forward and backward pass become few loops; matrix products, the optimizer and loading stay."""
    calls = draw.between("compile_cpu_calls", *KEPT_CALLS)
    memory = draw.between("compile_cpu_memory", *KEPT_MEMORY)
    entered_ns = GRAPHS * draw.ratio("compile_cpu_entered", *ENTERED_NS)
    return _compiled(graph, calls, memory).with_more_before("glue", _each_step(graph, entered_ns))


def least_on_cpu(graph: Graph) -> Graph:
    """The same where calls, and elementwise work outside the optimizer, cost nothing."""
    return _compiled(graph, 0.0, 0.0)


def _compiled(graph: Graph, calls: float, memory: float) -> Graph:
    """The graph with these shares left of operator calls and of elementwise work, both outside the optimizer."""
    optimizer = optimizer_spans(graph)
    factors = {part: share + (1 - share) * calls for part, share in graph.within(optimizer, *CALLS).items()}
    called = graph.scaled_before(factors)
    return called.scaled_inside(subtract(_elementwise(graph), optimizer), memory, "compute")


def optimizer_cpu(graph: Graph, draw: Draw) -> Graph:
    """One operator for all parameters in place of several for each: few calls, one pass over memory."""
    calls = draw.between("optimizer_cpu_calls", *FUSED_CALLS)
    spans = optimizer_spans(graph)
    return graph.scaled_inside(spans, calls, *CALLS).scaled_inside(spans, _fused_memory(graph, draw), "compute")


def _fused_memory(graph: Graph, draw: Draw) -> float:
    """What fusing leaves of the optimizer's passes over memory, 0-1."""
    kind, operators = _method(graph)
    if kind == "SGD":
        plain = operators is not None and operators < MOMENTUM
        return draw.between("optimizer_cpu_sgd", *(PLAIN_SGD_MEMORY if plain else SGD_MEMORY))
    if kind not in TRAFFIC:
        return draw.between("optimizer_cpu_memory", *FUSED_MEMORY)
    apart, fused = TRAFFIC[kind]
    follows = FOLLOWS_LARGE if _elements(graph) >= LARGE_ELEMENTS else FOLLOWS
    return min(1.0, fused / apart * draw.ratio("optimizer_cpu_traffic", *follows))


def _elements(graph: Graph) -> float:
    """Numbers in a parameter tensor, on average; 0 where that is not told."""
    tensors = sum(each.tensors or 0 for each in graph.run.optimizers)
    return sum(each.elements or 0 for each in graph.run.optimizers) / tensors if tensors else 0.0


@once
def _method(graph: Graph) -> tuple[str, float | None]:
    """The optimizer's class, and how many operators it calls for each parameter; None where that is not told."""
    told = updating_on_cpu(graph.run, graph.steps)
    tensors = sum(each.tensors or 0 for each in graph.run.optimizers)
    return (told.kind if told else "", told.pieces / tensors if told and tensors else None)


def batch_on_cpu(graph: Graph, times: float, draw: Draw) -> Graph:
    """A batch so many times as large: loading and operators take longer, calls and the optimizer do not."""
    code = 1 + (times - 1) * draw.between("batch_python", *_ends((0.0, 1.0), times)) * (1 - stays_frac(graph))
    product = times ** draw.between("batch_product", *_ends(_product_power(graph, times), times))
    convolution, other = (_grown("batch_" + name, ends, times, draw) for name, ends in _POWERS)
    small = 1 + max(0.0, times - 1) * draw.between("batch_small", *SMALL_SHARE)
    updates = graph.within(no_model_spans(graph), "compute", "dispatch", "python")
    elementwise, convolving = (graph.within(find(graph), "compute")["compute"] for find in (_elementwise, _convolving))
    convolving = np.minimum(convolving, 1 - elementwise)
    # A stop stands at each end of a stretch of computing: what calling its operator cost stays.
    compute = graph.host.before_ns["compute"]
    working = 1 - np.minimum(1.0, CALL_NS / np.maximum(compute, 1.0))
    products = 1 - elementwise - convolving
    grown = working * (products * product + convolving * convolution + elementwise * other - 1)
    factors = {
        "loader": times,
        "python": 1 + (1 - updates["python"]) * (code - 1),
        "compute": 1 + (1 - updates["compute"]) * grown,
        "dispatch": 1 + (1 - updates["dispatch"]) * (small - 1),
    }
    return graph.scaled_before(factors)


def _product_power(graph: Graph, times: float) -> tuple[float, float]:
    """How products grow, by how many samples the larger of both batches has, where that is known."""
    setup = leading_loader(graph.run)
    if setup is None or setup.batch_size is None:
        return PRODUCT_POWER
    rows = setup.batch_size * max(times, 1.0)
    if rows <= FEW_ROWS:
        return FEW_POWER
    return MANY_POWER if rows >= MANY_ROWS else PRODUCT_POWER


_POWERS = (("convolution", CONVOLUTION_POWER), ("other", OTHER_POWER))


def _grown(name: str, power: tuple[float, float], times: float, draw: Draw) -> float:
    """How many times as long it then takes; a smaller batch never less than in proportion."""
    drawn = draw.between(name, *_ends(power, times))
    return float(times ** (drawn if times > 1 else min(drawn, 1.0)))


def _ends(ends: tuple[float, float], times: float) -> tuple[float, float]:
    """The best and the worst of them, for a batch that grows and one that shrinks."""
    return ends if times >= 1 else ends[::-1]


def no_optimizer_cpu(graph: Graph) -> Graph:
    """The same where the optimizer's step costs nothing."""
    return graph.scaled_inside(optimizer_spans(graph), 0.0, "compute", *CALLS, "python")


def lacking_compile(graph: Graph) -> str | None:
    """Why compiling cannot be told for a step on the CPU; None where it can."""
    if graph.run.facts.get("compiler") == "none":
        return "on a CPU torch.compile needs a C++ compiler, and there was none"
    if any(model.compiled for model in graph.run.models):
        return "the model is compiled already"
    return None


@once
def _elementwise(graph: Graph) -> Spans:
    """When the main thread was in an operator that is no matrix product, and in no other operator within it."""
    events = graph.run.event_rows
    ops = events.where(np.flatnonzero((events["kind"] == Kind.OP) & (events["thread"] == graph.run.main_thread)))
    matrix = ops.matching(_multiplies)
    own = innermost(ops)
    chosen = ~matrix[own.row]
    found = union(own.start_ns[chosen], own.end_ns[chosen])
    products = ops.where(matrix).spans()
    return subtract(intersect(found, graph.part_spans["compute"]), products)


@once
def _convolving(graph: Graph) -> Spans:
    """When the main thread was in a convolution, forward or backward."""
    events = graph.run.event_rows
    mine = (events["kind"] == Kind.OP) & (events["thread"] == graph.run.main_thread)
    return events.where(np.flatnonzero(mine & events.matching(lambda word: "conv" in word))).spans()


def _multiplies(name: str) -> bool:
    return name in MATH or name.startswith(_PRODUCTS)


def _each_step(graph: Graph, cost_ns: float) -> Floats:
    """A cost once in each step, before the stop that follows its beginning."""
    added = np.zeros(len(graph.host))
    added[np.minimum(graph.step_first + 1, len(added) - 1)] = cost_ns
    return added
