"""What compiling and a fused optimizer do to a step on the CPU: fewer operators, fewer passes over memory."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.cpu_math import MATH
from gpulab.analysis.nesting import innermost
from gpulab.analysis.optimizers import ranges
from gpulab.intervals import Spans, intersect, subtract, union
from gpulab.replay.graph import Floats, Graph
from gpulab.replay.rewrite import Draw
from gpulab.replay.rewrites.once import once
from gpulab.tables import Kind

CALLS = ("dispatch", "glue")
GRAPHS = 2  # entered in a step: the forward pass, and what autograd makes of it
ENTERED_NS = (30_000.0, 120_000.0)  # guards, and handing tensors to compiled code, each time
KEPT_CALLS = (0.05, 0.5)  # of the calls of operators, what compiled code still calls: matrix products, views, buffers
KEPT_MEMORY = (0.3, 0.95)  # of the time of elementwise operators, after fusion

# Of the optimizer's step, what a fused one leaves: its calls, and its passes over memory. Measured with AdamW and SGD
# with momentum on 120 tensors of a CPU with 2 cores: 124 -> 23 ms and 20 -> 11 ms; plain SGD 9.6 -> 1.4 ms.
FUSED_CALLS = (0.02, 0.25)
FUSED_MEMORY = (0.15, 0.9)

_PRODUCTS = ("mkl::", "mkldnn::", "aten::mkldnn_", "aten::_scaled_dot_product", "aten::_flash_attention")


def compiled_on_cpu(graph: Graph, draw: Draw) -> Graph:
    """Operators of the forward and backward pass become few loops; matrix products, the optimizer and loading stay."""
    optimizer = _optimizer(graph)
    before = dict(graph.host.before_ns)
    calls = draw.between("compile_cpu_calls", *KEPT_CALLS)
    memory = draw.between("compile_cpu_memory", *KEPT_MEMORY)
    inside = graph.within(optimizer, *CALLS)
    for part, share in inside.items():
        before[part] = before[part] * (share + (1 - share) * calls)
    for part, share in graph.within(subtract(_elementwise(graph), optimizer), "compute").items():
        before[part] = before[part] * (1 - share * (1 - memory))
    before["glue"] = before.get("glue", np.zeros(len(graph.host))) + _each_step(
        graph, GRAPHS * draw.ratio("compile_cpu_entered", *ENTERED_NS)
    )
    return graph.with_host(before_ns=before)


def least_on_cpu(graph: Graph) -> Graph:
    """The same where calls, and elementwise work outside the optimizer, cost nothing."""
    optimizer = _optimizer(graph)
    before = dict(graph.host.before_ns)
    for part, share in graph.within(optimizer, *CALLS).items():
        before[part] = before[part] * share
    for part, share in graph.within(subtract(_elementwise(graph), optimizer), "compute").items():
        before[part] = before[part] * (1 - share)
    return graph.with_host(before_ns=before)


def optimizer_cpu(graph: Graph, draw: Draw) -> Graph:
    """One operator for all parameters in place of several for each: few calls, one pass over memory."""
    calls = draw.between("optimizer_cpu_calls", *FUSED_CALLS)
    memory = draw.between("optimizer_cpu_memory", *FUSED_MEMORY)
    before = dict(graph.host.before_ns)
    for part, share in graph.within(_optimizer(graph), "compute", *CALLS).items():
        before[part] = before[part] * (1 - share * (1 - (memory if part == "compute" else calls)))
    return graph.with_host(before_ns=before)


def no_optimizer_cpu(graph: Graph) -> Graph:
    """The same where the optimizer's step costs nothing."""
    before = dict(graph.host.before_ns)
    for part, share in graph.within(_optimizer(graph), "compute", *CALLS, "python").items():
        before[part] = before[part] * (1 - share)
    return graph.with_host(before_ns=before)


def lacking_compile(graph: Graph) -> str | None:
    """Why compiling cannot be told for a step on the CPU; None where it can."""
    if graph.run.facts.get("compiler") == "none":
        return "on a CPU torch.compile needs a C++ compiler, and there was none"
    if any(model.compiled for model in graph.run.models):
        return "the model is compiled already"
    return None


def lacking_optimizer(graph: Graph, kind: str) -> str | None:
    """Why an optimizer of this kind cannot be told for a step on the CPU; None where it can."""
    if kind == "foreach":
        return "on a CPU foreach=True still goes through the parameters one by one; ask for optimizer=fused"
    if not len(ranges(graph.run)):
        return "no optimizer's step was recorded"
    return None


@once
def _optimizer(graph: Graph) -> Spans:
    return ranges(graph.run).spans()


@once
def _elementwise(graph: Graph) -> Spans:
    """When the main thread was in an operator that is no matrix product, and in no other operator within it."""
    events = graph.run.event_rows
    ops = events.where(np.flatnonzero((events["kind"] == Kind.OP) & (events["thread"] == graph.run.main_thread)))
    names = ops.words("name")
    matrix = names.matching(_multiplies(word) for word in names.vocabulary)
    own = innermost(ops)
    chosen = ~matrix[own.row]
    found = union(own.start_ns[chosen], own.end_ns[chosen])
    products = ops.where(matrix).spans()
    return subtract(intersect(found, graph.part_spans["compute"]), products)


def _multiplies(name: str) -> bool:
    return name in MATH or name.startswith(_PRODUCTS)


def _each_step(graph: Graph, cost_ns: float) -> Floats:
    """A cost once in each step, before the stop that follows its beginning."""
    added = np.zeros(len(graph.host))
    added[np.minimum(graph.step_first + 1, len(added) - 1)] = cost_ns
    return added
