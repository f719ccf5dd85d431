"""CUDA graphs: capture the work of a step once and replay it with a single launch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import NONE, Graph, NodeKind
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.graph_work import call_roles
from gpulab.replay.rewrites.kernels.compile import remaining_waits

LAUNCH_NS = (10_000.0, 30_000.0)  # host time to launch a graph
GAP_NS = (1_000.0, 1_500.0)  # gap between kernels of a graph
MIN_CAPTURED_FRAC = 0.8  # minimum share of a step's kernels that one graph must contain
LONG_PYTHON_NS = 5_000_000.0  # Python code this long does work of its own, which a graph cannot repeat
MAX_GRAPHED_FRAC = 0.5


def cuda_graphs(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A CUDA graph of the step, or `torch.compile(mode="reduce-overhead")`: one launch starts all of its kernels.

    Models: in each step, the sequence with the most kernels in which the host does not wait, allocate, copy from or to
    its own memory, or run 5 ms of its own Python code. There the host costs one launch of 10 to 30 us; the gap between
    kernels is 1.0 to 1.5 us, or as small as it was. Loading and everything outside the sequence stay as they are. With
    `compile`, the graphs are those of the compiled model: the optimizer and the loop's own Python outside PyTorch stay,
    too.

    Priced from: launches of graphs and gaps between their kernels in recorded traces from V100 to B200.

    Cannot know: the copies of inputs into the graph's buffers, and whether sizes change from epoch to epoch.
    """
    return _captured(
        graph, draw.between("graph_launch", *LAUNCH_NS), draw.between("graph_turn", *GAP_NS), keep_before=True
    )


def cuda_graphs_best_case(graph: Graph, value: Value) -> Graph:
    """A host that costs nothing in any capturable sequence, each a separate graph, and kernels back to back."""
    return _captured(graph, 0.0, 0.0, keep_before=False, all_regions=True)


def _captured(
    graph: Graph, launch_ns: float, max_gap_ns: float, *, keep_before: bool, all_regions: bool = False
) -> Graph:
    host, device, region = graph.host, graph.device, capturable_regions(graph, all_regions=all_regions)
    inside = region.inside.copy()
    call_ns, queue_op, before = host.call_ns.copy(), host.queue_op.copy(), dict(host.before_ns)
    first_nodes = region.first_nodes
    other_nodes = inside.copy()
    other_nodes[first_nodes] = False
    call_ns[inside] = 0.0
    call_ns[first_nodes] = launch_ns
    queue_op[other_nodes] = NONE  # a graph takes one slot of the launch queue
    for part, ns in before.items():
        if part != "loader":
            # The code before the first kernel may not belong to the graph: only the calls are known to disappear.
            removed = other_nodes if keep_before and part == "python" else inside
            if part == "python" and "compile" in graph.applied:
                continue  # torch.compile captures the model, not the code of the loop around it
            before[part] = np.where(removed, 0.0, ns)
    captured = (device.call >= 0) & inside[np.maximum(device.call, 0)]
    follows = captured.copy()
    follows[host.first_op[first_nodes]] = False
    latency_ns = np.where(follows, 0.0, device.latency_ns)
    gap_ns = np.where(captured, np.minimum(device.gap_ns, max_gap_ns), device.gap_ns)
    awaited_delay_ns = np.where(captured, np.minimum(device.awaited_delay_ns, max_gap_ns), device.awaited_delay_ns)
    return graph.with_host(call_ns=call_ns, queue_op=queue_op, before_ns=before).with_device(
        latency_ns=latency_ns, gap_ns=gap_ns, awaited_delay_ns=awaited_delay_ns
    )


class CapturableRegions(NamedTuple):
    """The part of each step that a graph could capture."""

    inside: Mask  # host nodes
    first_nodes: Ints  # the first node of each region
    counts: Ints  # kernels in each interior step
    captured: Ints  # kernels of the step that are in its region
    breaks: Mask  # nodes that no graph can capture, among the kernels of a step


def capturable_regions(graph: Graph, *, all_regions: bool = False) -> CapturableRegions:
    """Return, per step, the sequence with the most kernels between two breaks, or all; with the present waits."""
    host = graph.host
    work = np.diff(host.first_op)
    roles = call_roles(graph)
    # torch.compile captures the model; a bound allows for any graph.
    capturable = roles.model if "compile" in graph.applied and not all_regions else roles.kernels
    kernels = np.where(capturable, work, 0)
    breaks = _breaks(graph) | (roles.kernels & ~capturable)
    edge = breaks | (host.kind == NodeKind.MARK)
    # Python code before a call ends a sequence, and the call starts the next one; other breaks are in no sequence.
    long_python = _long_python(graph) & ~edge
    _, segment = np.unique(np.cumsum(edge | long_python), return_inverse=True)
    weight = np.bincount(segment, weights=np.where(edge, 0, kernels))
    _, segment_start = np.unique(segment, return_index=True)
    step = np.cumsum(host.kind == NodeKind.MARK)[segment_start]
    order = np.lexsort((np.arange(len(weight)), -weight, step))
    best = order[np.unique(step[order], return_index=True)[1]]
    best = np.flatnonzero(weight) if all_regions else best[weight[best] > 0]
    inside, first_nodes = _first_to_last_kernel(np.isin(segment, best) & ~edge, segment, kernels > 0)
    total, captured = (
        np.append(0, np.cumsum(kernel_counts)) for kernel_counts in (kernels, np.where(inside, kernels, 0))
    )
    end, start = graph.step_end_node + 1, graph.step_start_node + 1
    return CapturableRegions(
        inside, first_nodes, total[end] - total[start], captured[end] - captured[start], breaks | long_python
    )


def _first_to_last_kernel(region: Mask, segment: Ints, works: Mask) -> tuple[Mask, Ints]:
    """Return, per region, the nodes from its first kernel to its last, and its first node."""
    launching = np.flatnonzero(region & works)
    new = np.flatnonzero(np.diff(segment[launching], prepend=-1) != 0)
    first_nodes = launching[new]
    last_nodes = launching[np.append(new[1:], len(launching)) - 1] if len(launching) else launching
    depth = np.zeros(len(region) + 1, np.int64)
    np.add.at(depth, first_nodes, 1)
    np.add.at(depth, last_nodes + 1, -1)
    return np.cumsum(depth[:-1]) > 0, first_nodes


def _breaks(graph: Graph) -> Mask:
    """Nodes that cannot be part of a graph: waits, allocations, synchronisations, copies from and to the host."""
    stop = graph.host.kind
    return np.asarray(
        remaining_waits(graph)
        | (stop == NodeKind.ALLOC)
        | (stop == NodeKind.SYNC)
        | call_roles(graph).host_device_copies,
        bool,
    )


def _long_python(graph: Graph) -> Mask:
    python = graph.host.before_ns.get("python")
    loader = graph.host.before_ns.get("loader")
    zeros = np.zeros(len(graph.host))
    return np.asarray(
        ((zeros if python is None else python) >= LONG_PYTHON_NS) | ((zeros if loader is None else loader) > 0)
    )


_CODE = """graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # after a few ordinary steps
    step(batch)  # forward, backward, optimizer.step()
# then for each new batch:
batch.copy_(new_batch)
graph.replay()"""


def cuda_graphs_refusal(graph: Graph, value: Value) -> str | None:
    """Return why CUDA graphs cannot be predicted."""
    if not graph.on_gpu:
        return "the run contains no GPU work"
    kernels_per_call = np.diff(graph.host.first_op)
    if kernels_per_call[kernels_per_call > 1].sum() > MAX_GRAPHED_FRAC * max(1, kernels_per_call.sum()):
        return "its kernels are launched as CUDA graphs already"
    region = capturable_regions(graph)
    counts, captured = region.counts, region.captured
    if not counts.sum():
        return "no kernel launch was recorded"
    if counts.min() != counts.max():
        return f"the number of kernels differs from step to step ({counts.min():,} to {counts.max():,})"
    if captured.min() < MIN_CAPTURED_FRAC * counts.max():
        return (
            f"a graph could capture at most {captured.min():,} of the {counts.max():,} kernels of a step: "
            f"{_interrupting_calls(graph, region)} interrupt them"
        )
    return None


def _interrupting_calls(graph: Graph, region: CapturableRegions) -> str:
    """Return the names of the calls that interrupt a step, most frequent first."""
    names = graph.run.event_rows.text("name")
    inside = region.breaks & (graph.step_of >= 0)
    codes = names.codes[graph.host.event[inside & (graph.host.event >= 0)]]
    codes_found, count = np.unique(codes[codes >= 0], return_counts=True)
    labels = [names.vocabulary[code] for code in codes_found[np.argsort(-count, kind="stable")][:3].tolist()]
    return ", ".join(labels) or "long Python sections"


CUDA_GRAPH_REWRITES = (
    Rewrite(
        name="cuda_graphs",
        needs_operators=True,
        edit=cuda_graphs,
        best_case=cuda_graphs_best_case,
        grade="C",
        about="the kernels of a step launched as one CUDA graph",
        bound_label="launches at no cost",
        refusal_reason=cuda_graphs_refusal,
        cost="inputs keep their address and size; optimizers need capturable=True; the graph reserves its memory",
        code=lambda graph, value: _CODE,
    ),
)
