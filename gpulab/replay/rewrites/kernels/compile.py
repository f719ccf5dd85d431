"""torch.compile: chains of memory passes become one kernel each, and operators are not dispatched one by one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import KernelFamily
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import NONE, Floats, Graph, NodeKind
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run, mark_applied
from gpulab.replay.rewrites.engine.graph_work import DISPATCH_PARTS, call_cost_ns, call_roles, classified_ops
from gpulab.replay.rewrites.engine.lower_bounds import (
    minimum_time_frac,
    ops_of_same_operators,
    peak_of_run_gpu,
    shrink_ops,
)
from gpulab.replay.rewrites.kernels.compile_on_cpu import (
    compile_on_cpu,
    compile_on_cpu_best_case,
    compile_on_cpu_refusal,
)

# Remaining share of a chain's shorter passes: their inputs, and tensors saved for backward.
REMAINING_PASSES = (0.05, 0.6)
CODEGEN = (0.85, 1.1)  # duration of a compiler-generated kernel relative to PyTorch's own
KERNEL_NS = (3_000.0, 8_000.0)  # host time per remaining kernel: compiled code calls launchers directly
ENTERED_NS = (20_000.0, 80_000.0)  # host time per graph: guards, and passing tensors
MAX_COMPILED_FRAC = 0.5  # share of the time in memory passes


def compile_(graph: Graph, value: Value, draw: Draw) -> Graph:
    """`torch.compile`: kernels are fused, and operators are no longer dispatched one by one.

    Models: in the forward and backward pass, each chain of memory passes (elementwise operators, norms, softmax) that
    no matrix product, copy or host wait interrupts becomes one kernel: its longest pass, plus 5 to 60 % of the others.
    Each remaining kernel costs the host 3 to 8 us, and each graph 20 to 80 us more; a graph ends where the host waits
    for the GPU. The optimizer, loading and the user's own Python do not change. On a CPU few operator calls remain, and
    elementwise operators share their memory passes.

    Priced from: host cost of Triton launchers and compiled graphs on current machines; nanoGPT on A100 (published: 250
    -> 135 ms) is one reference.

    Cannot know: which part of the step you compile (the loss is assumed to be included), where Python code breaks the
    graph, varying sizes (each is compiled again), the time of the first call (up to minutes), and gains from
    max-autotune.
    """
    if not graph.on_gpu:
        return compile_on_cpu(graph, draw)
    fusable = fusable_chains(graph)
    kept_frac, codegen_factor = (
        draw.between("compile_kept", *REMAINING_PASSES),
        draw.between("compile_written", *CODEGEN),
    )
    longest, total = fusable.longest_and_sum(graph.device.dur_ns)
    fused = _fuse(graph, fusable, codegen_factor * (longest + kept_frac * (total - longest)))
    kernel_ns, graph_ns = draw.between("compile_kernel", *KERNEL_NS), draw.ratio("compile_entered", *ENTERED_NS)
    return mark_applied(_host_cost(fused, fusable, kernel_ns, graph_ns), "compile")


def compile_best_case(graph: Graph, value: Value) -> Graph:
    """Matrix products at peak rate if their sizes are known, other compiled work in no time, no host cost.

    A pass may be fused into the product before or after it, and products may be padded or use other kernels.
    """
    if not graph.on_gpu:
        return compile_on_cpu_best_case(graph)
    fusable = fusable_chains(graph)
    compiled = fusable.compiled_nodes[np.maximum(graph.device.call, 0)] & (graph.device.call >= 0)
    matrix = ops_of_same_operators(graph, classified_ops(graph).family_mask(KernelFamily.MATRIX))
    share = np.where(matrix, minimum_time_frac(graph, peak_of_run_gpu(graph)), 0.0)
    return mark_applied(_host_cost(shrink_ops(graph, compiled, share), fusable, 0.0, 0.0), "compile")


class FusableChains(NamedTuple):
    """Consecutive memory passes that fuse into one kernel; a single pass is a chain of one."""

    ops: Ints  # device ops in launch order
    first: Ints  # index of each chain's first op in `member`
    compiled_nodes: Mask  # host nodes whose calls are compiled
    first_nodes: Ints  # the first such node of each graph

    def longest_and_sum(self, values: Floats) -> tuple[Floats, Floats]:
        """Return the largest value and the sum of each chain."""
        durations = values[self.ops]
        if not len(durations):
            return durations, durations
        return np.maximum.reduceat(durations, self.first), np.add.reduceat(durations, self.first)

    @property
    def fused_away(self) -> Ints:
        """The ops that disappear: all but the first of each chain."""
        keep = np.ones(len(self.ops), bool)
        keep[self.first] = False
        return self.ops[keep]


def fusable_chains(graph: Graph) -> FusableChains:
    """Return the chains of a graph, with its present waits."""
    host, kernels = graph.host, classified_ops(graph)
    inside = compiled_calls(graph)
    group = number_compiled_graphs(graph, inside)
    call = np.maximum(graph.device.call, 0)
    member = np.flatnonzero(kernels.family_mask(KernelFamily.STREAM) & inside[call] & (graph.device.call >= 0))
    joined = np.zeros(len(member), bool)
    before = graph.device.previous_op[member]
    joined[1:] = (before[1:] == member[:-1]) & (group[call[member[1:]]] == group[call[member[:-1]]])
    # Any op launched between two passes interrupts the chain, on whichever stream.
    joined[1:] &= member[1:] - member[:-1] == 1
    stops = np.flatnonzero(inside)
    first_nodes = stops[np.flatnonzero(np.diff(group[stops], prepend=-1) != 0)] if len(host) else stops
    return FusableChains(member, np.flatnonzero(~joined), inside, first_nodes)


def compiled_calls(graph: Graph) -> Mask:
    """Mask of the calls of the forward and backward pass: no optimizer, no batch copies, no waits, no CUDA graphs."""
    return _model_calls(graph) & ~remaining_waits(graph)


@cached_per_run
def _model_calls(graph: Graph) -> Mask:
    roles, host = call_roles(graph), graph.host
    single = np.diff(host.first_op) <= 1  # including calls whose work was not recorded
    kinds = (host.kind == NodeKind.LAUNCH) | (host.kind == NodeKind.COPY_CALL)
    return np.asarray(single & kinds & ~roles.updates & ~roles.clears & ~roles.h2d_copies, bool)


def remaining_waits(graph: Graph) -> Mask:
    """Mask of the nodes where the host waits for the device, except D2D copies, which never block it."""
    return np.asarray((graph.host.awaited_op != NONE) & ~call_roles(graph).d2d_copies, bool)


def number_compiled_graphs(graph: Graph, compiled: Mask) -> Ints:
    """Number the compiled graphs: a new one starts after steps, after waits, and when the thread changes."""
    host, stops = graph.host, np.flatnonzero(compiled)
    thread = _thread_of(graph)[stops]
    ends = (host.kind == NodeKind.MARK) | remaining_waits(graph)
    ends[stops[1:][thread[1:] != thread[:-1]]] = True
    return np.cumsum(ends)


@cached_per_run
def _thread_of(graph: Graph) -> Ints:
    event = graph.host.event
    return np.where(event >= 0, graph.run.event_rows["thread"][np.maximum(event, 0)], NONE)


def _fuse(graph: Graph, fusable: FusableChains, chain_ns: Floats) -> Graph:
    """Return the graph with each chain's time in its first kernel, and without the others."""
    dur_ns, gap_ns = graph.device.dur_ns.copy(), graph.device.gap_ns.copy()
    later = fusable.fused_away
    dur_ns[fusable.ops[fusable.first]] = chain_ns
    dur_ns[later], gap_ns[later] = 0.0, 0.0
    return graph.with_device(dur_ns=dur_ns, gap_ns=gap_ns)


def _host_cost(graph: Graph, fusable: FusableChains, each_ns: float, entered_ns: float) -> Graph:
    """Return the graph with at most this host cost per remaining kernel, plus a cost per graph."""
    target = np.where(fusable.compiled_nodes, each_ns, np.inf)
    removed_calls = graph.device.call[fusable.fused_away]
    target[removed_calls] = 0.0
    current_ns = call_cost_ns(graph)
    factor = np.minimum(1.0, np.divide(target, current_ns, out=np.ones(len(current_ns)), where=current_ns > 0))
    cheaper = graph.scaled_before(dict.fromkeys(DISPATCH_PARTS, factor)).with_host(call_ns=graph.host.call_ns * factor)
    added = np.zeros(len(current_ns))
    added[fusable.first_nodes] = entered_ns
    return cheaper.with_more_before("dispatch", added)


def compile_refusal(graph: Graph, value: Value) -> str | None:
    """Return why torch.compile cannot be predicted."""
    if not graph.on_gpu:
        return compile_on_cpu_refusal(graph)
    kernels = classified_ops(graph)
    compiled_ns, passes_ns = (
        kernels.dur_ns[kernels.family_mask(each)].sum() for each in (KernelFamily.COMPILED, KernelFamily.STREAM)
    )
    if any(model.compiled for model in graph.run.models) or compiled_ns > MAX_COMPILED_FRAC * (compiled_ns + passes_ns):
        return "the model is compiled already"
    if not compiled_calls(graph).any():
        return "no calls of a forward or backward pass were recorded, so there is nothing to compile"
    return None


def _code(graph: Graph, value: Value) -> str:
    model = next((each.name for each in graph.run.models if each.name), "model")
    return f"{model} = torch.compile({model})"


COMPILE_REWRITES = (
    Rewrite(
        name="compile",
        needs_operators=True,
        removes_waits=False,
        edit=compile_,
        best_case=compile_best_case,
        grade="C",
        about="torch.compile: small kernels fused, operators not dispatched one by one",
        bound_label="perfect fusion and no host cost",
        refusal_reason=compile_refusal,
        cost="the first call takes up to minutes, and each new input size compiles again",
        code=_code,
    ),
)
