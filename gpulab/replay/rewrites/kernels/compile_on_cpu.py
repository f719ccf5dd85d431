"""torch.compile, fused optimizer and batch size for steps that the CPU computes."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.host.cpu_math import LAYER_OPS
from gpulab.analysis.kernels.optimizers import optimizer_cost_on_cpu
from gpulab.analysis.steps.forward_backward import forward_backward_spans
from gpulab.intervals import Spans, intersect, subtract, union
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.rewrites.engine.graph_work import optimizer_spans, update_spans
from gpulab.replay.rewrites.host.python_and_gc import remaining_python_frac
from gpulab.tables import EventKind

CALLS = ("dispatch", "glue")
GRAPHS = 2  # compiled graphs per step: forward and backward
ENTERED_NS = (30_000.0, 120_000.0)  # guards, and passing tensors to compiled code, per graph
REMAINING_CALLS = (0.05, 0.5)  # share of operator calls that remain: matrix products, views, buffers
REMAINING_MEMORY = (0.3, 0.95)  # remaining share of the time of elementwise operators

# Share of the calls inside `Optimizer.step` that remain if fused: one operator, and the iteration over parameters.
FUSED_CALLS = (0.02, 0.25)
# Elements read and written per parameter, for separate operators and fused. Adam: lerp_, mul_, addcmul_,
# sqrt, div, add_, addcdiv_. Tensors in a cache, or many divisions, follow these numbers less closely.
TRAFFIC = {"Adam": (18, 7), "AdamW": (20, 7), "Adagrad": (11, 5)}
FUSED_MEMORY = (0.15, 0.9)  # for any other optimizer
# How closely the time of its operators follows those numbers. Tensors of 128 KiB and more get new pages from the
# system for each result, which costs several times the arithmetic; a fused optimizer allocates none.
TRAFFIC_SPREAD, TRAFFIC_SPREAD_LARGE = (0.5, 1.8), (0.1, 1.4)
LARGE_ELEMENTS = 32_768
# SGD with momentum reads and writes 8 elements, 5 if fused; measured, it gained little or nothing.
SGD_MEMORY, SIMPLE_SGD_MEMORY = (0.7, 1.3), (0.8, 1.1)
MOMENTUM = 2  # SGD with at least this many operators per parameter has momentum; without, it has one operator

# With a batch N times as large, operators take N to this power as long. Matrix products read their weights once per
# batch, so small batches scale well; convolutions have few weights; work on weights (the optimizer) does not change.
PRODUCT_POWER, CONVOLUTION_POWER, OTHER_POWER = (0.0, 1.0), (0.85, 1.1), (0.8, 1.2)
FEW_ROWS, MANY_ROWS = 64, 256  # samples up to which weights limit products, and from which arithmetic does
FEW_POWER, MANY_POWER = (0.0, 0.5), (0.6, 1.0)
CALL_NS = 8_000.0  # call cost of an operator that is long enough to count as computing
# Arithmetic share of small operators, which grows with the batch; the rest is call cost.
SMALL_OPS_ARITHMETIC = (0.0, 0.03)

_PRODUCTS = ("mkl::", "mkldnn::", "aten::mkldnn_", "aten::_scaled_dot_product", "aten::_flash_attention")


def compile_on_cpu(graph: Graph, draw: Draw) -> Graph:
    """Few loops replace the operators of forward and backward; matrix products and everything else do not change."""
    calls = draw.between("compile_cpu_calls", *REMAINING_CALLS)
    memory = draw.between("compile_cpu_memory", *REMAINING_MEMORY)
    entered_ns = GRAPHS * draw.ratio("compile_cpu_entered", *ENTERED_NS)
    return _with_shares(graph, calls, memory).with_more_before("glue", _once_per_step(graph, entered_ns))


def compile_on_cpu_best_case(graph: Graph) -> Graph:
    """The same with calls and elementwise work of forward and backward at no cost."""
    return _with_shares(graph, 0.0, 0.0)


def _with_shares(graph: Graph, calls: float, memory: float) -> Graph:
    """Return the graph with these shares left of operator calls and of elementwise work, where code is compiled."""
    compiled = _compiled_spans(graph)
    fewer_calls = graph.scaled_inside(compiled, calls, *CALLS)
    return fewer_calls.scaled_inside(intersect(_elementwise_spans(graph), compiled), memory, "compute")


@cached_per_run
def _compiled_spans(graph: Graph) -> Spans:
    """Spans of forward and backward passes; without a backward pass, all but the optimizer."""
    spans = forward_backward_spans(graph.run)
    everything = union(np.array([0]), np.array([graph.run.span_ns]))
    return subtract(everything if spans is None else spans, optimizer_spans(graph))


def fuse_optimizer_on_cpu(graph: Graph, draw: Draw) -> Graph:
    """One operator for all parameters instead of several per parameter: few calls, one memory pass."""
    calls = draw.between("optimizer_cpu_calls", *FUSED_CALLS)
    spans = optimizer_spans(graph)
    return graph.scaled_inside(spans, calls, *CALLS).scaled_inside(spans, _fused_memory(graph, draw), "compute")


def _fused_memory(graph: Graph, draw: Draw) -> float:
    """Return the remaining share (0-1) of the optimizer's memory passes."""
    kind, operators = _method(graph)
    if kind == "SGD":
        without_momentum = operators is not None and operators < MOMENTUM
        return draw.between("optimizer_cpu_sgd", *(SIMPLE_SGD_MEMORY if without_momentum else SGD_MEMORY))
    if kind not in TRAFFIC:
        return draw.between("optimizer_cpu_memory", *FUSED_MEMORY)
    separate, fused = TRAFFIC[kind]
    follows = TRAFFIC_SPREAD_LARGE if _elements(graph) >= LARGE_ELEMENTS else TRAFFIC_SPREAD
    return min(1.0, fused / separate * draw.ratio("optimizer_cpu_traffic", *follows))


def _elements(graph: Graph) -> float:
    """Return the mean number of elements per parameter tensor; 0 if unknown."""
    tensors = sum(each.tensors or 0 for each in graph.run.optimizers)
    return sum(each.elements or 0 for each in graph.run.optimizers) / tensors if tensors else 0.0


@cached_per_run
def _method(graph: Graph) -> tuple[str, float | None]:
    """Return the optimizer's class, and its operators per parameter; None if unknown."""
    updating = optimizer_cost_on_cpu(graph.run, graph.steps)
    tensors = sum(each.tensors or 0 for each in graph.run.optimizers)
    return (updating.kind if updating else "", updating.count / tensors if updating and tensors else None)


def batch_on_cpu(graph: Graph, times: float, draw: Draw) -> Graph:
    """A batch `times` as large: loading and operators take longer, calls and the optimizer do not."""
    python_factor = 1 + (times - 1) * draw.between("batch_python", *_ordered_ends((0.0, 1.0), times)) * (
        1 - remaining_python_frac(graph)
    )
    product = times ** draw.between("batch_product", *_ordered_ends(_product_power(graph, times), times))
    convolution, other = (_growth("batch_" + name, ends, times, draw) for name, ends in _POWERS)
    small = 1 + max(0.0, times - 1) * draw.between("batch_small", *SMALL_OPS_ARITHMETIC)
    updates = graph.share_inside(update_spans(graph), "compute", "dispatch", "python")
    elementwise, convolving = (
        graph.share_inside(find(graph), "compute")["compute"] for find in (_elementwise_spans, _convolution_spans)
    )
    convolving = np.minimum(convolving, 1 - elementwise)
    # Each computing span ends at a node; the cost of calling its operator does not change.
    compute = graph.host.before_ns["compute"]
    working = 1 - np.minimum(1.0, CALL_NS / np.maximum(compute, 1.0))
    products = 1 - elementwise - convolving
    growth = working * (products * product + convolving * convolution + elementwise * other - 1)
    factors = {
        "loader": times,
        "python": 1 + (1 - updates["python"]) * (python_factor - 1),
        "compute": 1 + (1 - updates["compute"]) * growth,
        "dispatch": 1 + (1 - updates["dispatch"]) * (small - 1),
    }
    return graph.scaled_before(factors)


def _product_power(graph: Graph, times: float) -> tuple[float, float]:
    """Return how products grow, depending on the samples of the larger of both batches, if known."""
    setup = training_loader(graph.run)
    if setup is None or setup.batch_size is None:
        return PRODUCT_POWER
    rows = setup.batch_size * max(times, 1.0)
    if rows <= FEW_ROWS:
        return FEW_POWER
    return MANY_POWER if rows >= MANY_ROWS else PRODUCT_POWER


_POWERS = (("convolution", CONVOLUTION_POWER), ("other", OTHER_POWER))


def _growth(name: str, power: tuple[float, float], times: float, draw: Draw) -> float:
    """Return the growth factor; a smaller batch shrinks at most in proportion."""
    exponent = draw.between(name, *_ordered_ends(power, times))
    return float(times ** (exponent if times > 1 else min(exponent, 1.0)))


def _ordered_ends(ends: tuple[float, float], times: float) -> tuple[float, float]:
    """Return the best and worst value, in the order for a growing or a shrinking batch."""
    return ends if times >= 1 else ends[::-1]


def without_optimizer_on_cpu(graph: Graph) -> Graph:
    """Return the graph where `Optimizer.step` costs nothing."""
    return graph.scaled_inside(optimizer_spans(graph), 0.0, "compute", *CALLS, "python")


def compile_on_cpu_refusal(graph: Graph) -> str | None:
    """Return why torch.compile cannot be predicted for a step on the CPU; None if it can."""
    if graph.run.facts.get("compiler") == "none":
        return "torch.compile on a CPU needs a C++ compiler, and none was found"
    if any(model.compiled for model in graph.run.models):
        return "the model is compiled already"
    return None


@cached_per_run
def _elementwise_spans(graph: Graph) -> Spans:
    """Spans in which the main thread is in an operator that is not a matrix product, and in no nested operator."""
    events = graph.run.event_rows
    ops = events.select(np.flatnonzero(events.is_kind(EventKind.OP) & (events["thread"] == graph.run.main_thread)))
    is_product = ops.matching(_multiplies)
    innermost_spans = innermost(ops)
    is_elementwise = ~is_product[innermost_spans.row]
    elementwise = union(innermost_spans.start_ns[is_elementwise], innermost_spans.end_ns[is_elementwise])
    products = ops.select(is_product).spans()
    return subtract(intersect(elementwise, graph.part_spans["compute"]), products)


@cached_per_run
def _convolution_spans(graph: Graph) -> Spans:
    """Spans in which the main thread is in a convolution, forward or backward."""
    events = graph.run.event_rows
    main_ops = events.is_kind(EventKind.OP) & (events["thread"] == graph.run.main_thread)
    return events.select(np.flatnonzero(main_ops & events.matching(lambda word: "conv" in word))).spans()


def _multiplies(name: str) -> bool:
    return name in LAYER_OPS or name.startswith(_PRODUCTS)


def _once_per_step(graph: Graph, cost_ns: float) -> Floats:
    """Return a cost once per step, before the second node of the step."""
    added = np.zeros(len(graph.host))
    added[np.minimum(graph.step_start_node + 1, len(added) - 1)] = cost_ns
    return added
