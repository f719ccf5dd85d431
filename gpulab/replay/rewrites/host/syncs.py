"""Host waits for the device, removed or done only in every N-th step; and `cudaMalloc`/`cudaFree` calls, removed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.syncs import DATA_DEPENDENT_OPS, VALUE_OPS, containing_operators
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints, Spans, no_spans
from gpulab.replay.graph.graph import Graph, NodeKind
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.copies.pin_and_prefetch import h2d_copies
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.rewrites.engine.every_nth_step import spread_over_steps
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

MAX_STEPS = 100_000


@dataclass(frozen=True, eq=False)
class AvoidableWaits:
    """Avoidable waits for the device, and the D2H copies they wait for."""

    nodes: Ints
    d2h_copies: Ints  # device ops: D2H copies
    value_reads: Spans  # when the host was inside operators that read a value
    unavoidable_count: int  # unavoidable waits: the host needs the number of elements to continue


@cached_per_run
def avoidable_waits(graph: Graph) -> AvoidableWaits:
    """Return the waits in recorded steps that read a value, or only synchronise."""
    events, device, host = graph.run.event_rows, graph.device, graph.host
    names = events.text("name")
    is_d2h = np.array([copy_direction(word) == "DtoH" for word in names.vocabulary] + [False])
    is_read = events.is_kind(EventKind.MEMCPY)[device.event] & is_d2h[events["name"][device.event]] & (device.call >= 0)
    reads_value = np.zeros(len(host), bool)
    reads_value[device.call[is_read]] = True
    in_steps = np.zeros(len(host), bool)
    marks = np.flatnonzero(host.kind == NodeKind.MARK)
    in_steps[marks[0] : marks[-1] + 1] = True
    avoidable: Mask = in_steps & ((host.kind == NodeKind.SYNC) | ((host.kind == NodeKind.COPY_CALL) & reads_value))
    avoidable[h2d_copies(graph).possible_waits] = False
    shapes = _inside_ops(graph.run, np.flatnonzero(avoidable), host.event, DATA_DEPENDENT_OPS)
    stops = np.flatnonzero(avoidable)[~shapes]
    removed = np.zeros(len(host) + 1, bool)
    removed[stops] = True
    value_ops = _outermost_ops(graph.run, VALUE_OPS)
    return AvoidableWaits(
        nodes=stops,
        d2h_copies=np.flatnonzero(is_read & removed[device.call]),
        value_reads=value_ops.spans() if len(value_ops) else no_spans(),
        unavoidable_count=int(shapes.sum()),
    )


def _outermost_ops(run: Run, names: tuple[str, ...]) -> Rows:
    """The outermost operators with these names."""
    events = run.event_rows
    ops = events.select(np.flatnonzero(events.matching(lambda word: word in names) & events.is_kind(EventKind.OP)))
    return ops.select(outermost(ops)) if len(ops) else ops


def _inside_ops(run: Run, stops: Ints, event: Ints, names: tuple[str, ...]) -> Mask:
    """Mask of the nodes inside an operator with one of these names, on the same thread."""
    ops = _outermost_ops(run, names)
    if not len(ops) or not len(stops):
        return np.zeros(len(stops), bool)
    is_inside: Mask = containing_operators(ops, run.event_rows.select(event[stops])) >= 0
    return is_inside


def no_syncs(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The loop reads no value from the GPU and does not synchronise: no `.item()`, `.cpu()`, `synchronize()`.

    Models: every wait of the host for the device is removed, with the D2H copy it waits for. Such a line of code then
    becomes an operator that keeps the value on the GPU, at the same host cost. Waits for H2D copies remain
    (`pin_memory` removes those), and so do waits of operators whose result size depends on the data (nonzero, boolean
    masks), because the host needs that size. Nothing is assumed: the replay computes the cost of each wait, and the
    next wait takes over part of it. GradScaler reads one value per step; only bf16 avoids that.

    Cannot know: whether the loop can do without the value.
    """
    return without_waits(graph)


def sync_every(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The loop reads values from the GPU, and synchronises, only in every N-th step.

    Models: steps without waits as in `no_syncs`. A step with waits costs as much more as it does now in the replay,
    because the GPU's queue must be refilled after a wait. That cost is spread over N steps, so the predicted step is
    the mean of N steps, not the median.

    Cannot know: whether the values are needed earlier.
    """
    return spread_over_steps(graph, without_waits(graph), float(value), "waits")


def without_waits(graph: Graph, *, keep_operators: bool = True) -> Graph:
    """Return the graph without these waits; with `asked=False`, also without the operators that read the values."""
    avoidable = avoidable_waits(graph)
    remaining = graph.without_calls(avoidable.nodes).without_work(avoidable.d2h_copies)
    if keep_operators or not len(avoidable.value_reads.start_ns):
        return remaining
    return remaining.scaled_before(
        {part: 1 - share for part, share in graph.share_inside(avoidable.value_reads).items()}
    )


def no_alloc(graph: Graph, value: Value, draw: Draw) -> Graph:
    """No `cudaMalloc` or `cudaFree` in steady-state steps: PyTorch's caching allocator has enough memory.

    Models: calls that allocate or free driver memory (cudaMalloc, cudaFree, cudaHostAlloc) take no time, and the waits
    inside them disappear: cudaFree waits for all work of the GPU. The next wait takes over part of that.

    Cannot know: which change achieves it. Usually it is no `empty_cache()` in the loop, tensors of the same sizes in
    every step, or more free memory.
    """
    return graph.scaled_before({"alloc": 0.0}).without_calls(graph.host.kind == NodeKind.ALLOC)


def parse_step_count(text: str) -> Value:
    """Parse a number of steps."""
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number of steps") from None
    if not 1 <= count <= MAX_STEPS:
        raise ValueError(f"{count} is not between 1 and {MAX_STEPS:,} steps")
    return count


def _sync_refusal(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "the run contains no GPU work"
    avoidable = avoidable_waits(graph)
    in_steps = avoidable.nodes[(graph.step_of[avoidable.nodes] >= 0) & (graph.host.awaited_op[avoidable.nodes] >= 0)]
    if len(in_steps):
        return None
    if avoidable.unavoidable_count:
        return "its only waits are for result sizes, which the host needs to continue"
    return "no step waits to read a value from the GPU"


def _every_nth_refusal(graph: Graph, value: Value) -> str | None:
    reason = _sync_refusal(graph, value)
    if reason is None and graph.steps.detected_by == "whole run":
        return "no steps were detected, so there is no N-th step"
    return reason


def _alloc_refusal(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "the run contains no GPU work"
    calls = (graph.host.kind == NodeKind.ALLOC) & (graph.step_of >= 0)
    return None if calls.any() else "its steps do not call cudaMalloc or cudaFree"


SYNC_REWRITES = (
    Rewrite(
        name="no_syncs",
        edit=no_syncs,
        best_case=lambda graph, value: without_waits(graph, keep_operators=False),
        grade="A",
        about="the host never waits to read a value from the GPU",
        bound_label="no synchronisation",
        refusal_reason=_sync_refusal,
        cost="printed or logged values appear later",
        code=lambda graph, value: "total += loss.detach()  # on the GPU; total.item() once, after the loop",
    ),
    Rewrite(
        name="sync_every",
        edit=sync_every,
        best_case=lambda graph, value: without_waits(graph, keep_operators=False),
        grade="A",
        about="values read from the GPU only in every N-th step",
        bound_label="no synchronisation",
        refusal_reason=_every_nth_refusal,
        value_help="a number of steps",
        default=50,
        parse=parse_step_count,
        cost="values are printed or logged only in every N-th step",
        code=lambda graph, value: f"if step % {value} == 0:\n    print(loss.item())",
    ),
    Rewrite(
        name="no_alloc",
        edit=no_alloc,
        best_case=lambda graph, value: no_alloc(graph, value, Draw()),
        grade="A",
        about="no cudaMalloc or cudaFree in steady-state steps",
        bound_label="allocation at no cost",
        refusal_reason=_alloc_refusal,
        code=lambda graph, value: "# no torch.cuda.empty_cache() in the loop; batches of one size (drop_last=True)",
    ),
)
