"""Host waits for the device, removed or done only in every N-th step; and `cudaMalloc`/`cudaFree` calls, removed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.table import direction
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.syncs import SHAPES, VALUES, holders
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints, Spans, nothing
from gpulab.replay.graph.graph import Graph, Stop
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.copies.pinning_and_prefetch import writes
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.engine.every_nth_step import every
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

MAX_STEPS = 100_000


@dataclass(frozen=True, eq=False)
class Waits:
    """Avoidable waits for the device, and the D2H copies they wait for."""

    stops: Ints
    reads: Ints  # device ops: D2H copies
    asking: Spans  # when the host was inside operators that read a value
    needed: int  # unavoidable waits: the host needs the number of elements to continue


@once
def waits(graph: Graph) -> Waits:
    """Return the waits in recorded steps that read a value, or only synchronise."""
    events, device, host = graph.run.event_rows, graph.device, graph.host
    names = events.words("name")
    is_d2h = np.array([direction(word) == "DtoH" for word in names.vocabulary] + [False])
    is_read = (events["kind"][device.event] == Kind.MEMCPY) & is_d2h[events["name"][device.event]] & (device.call >= 0)
    reads_value = np.zeros(len(host), bool)
    reads_value[device.call[is_read]] = True
    in_steps = np.zeros(len(host), bool)
    marks = np.flatnonzero(host.kind == Stop.MARK)
    in_steps[marks[0] : marks[-1] + 1] = True
    avoidable: Mask = in_steps & ((host.kind == Stop.SYNC) | ((host.kind == Stop.COPY_CALL) & reads_value))
    avoidable[writes(graph).asking] = False
    shapes = _inside_ops(graph.run, np.flatnonzero(avoidable), host.event, SHAPES)
    stops = np.flatnonzero(avoidable)[~shapes]
    removed = np.zeros(len(host) + 1, bool)
    removed[stops] = True
    value_ops = _outermost_ops(graph.run, VALUES)
    return Waits(
        stops=stops,
        reads=np.flatnonzero(is_read & removed[device.call]),
        asking=value_ops.spans() if len(value_ops) else nothing(),
        needed=int(shapes.sum()),
    )


def _outermost_ops(run: Run, names: tuple[str, ...]) -> Rows:
    """The outermost operators with these names."""
    events = run.event_rows
    ops = events.where(np.flatnonzero(events.matching(lambda word: word in names) & (events["kind"] == Kind.OP)))
    return ops.where(outermost(ops)) if len(ops) else ops


def _inside_ops(run: Run, stops: Ints, event: Ints, names: tuple[str, ...]) -> Mask:
    """Mask of the nodes inside an operator with one of these names, on the same thread."""
    ops = _outermost_ops(run, names)
    if not len(ops) or not len(stops):
        return np.zeros(len(stops), bool)
    is_inside: Mask = holders(ops, run.event_rows.where(event[stops])) >= 0
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
    return dropped(graph)


def sync_every(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The loop reads values from the GPU, and synchronises, only in every N-th step.

    Models: steps without waits as in `no_syncs`. A step with waits costs as much more as it does now in the replay,
    because the GPU's queue must be refilled after a wait. That cost is spread over N steps, so the predicted step is
    the mean of N steps, not the median.

    Cannot know: whether the values are needed earlier.
    """
    return every(graph, dropped(graph), float(value), "waits")


def dropped(graph: Graph, *, asked: bool = True) -> Graph:
    """Return the graph without these waits; with `asked=False`, also without the operators that read the values."""
    avoidable = waits(graph)
    remaining = graph.without_calls(avoidable.stops).without_work(avoidable.reads)
    if asked or not len(avoidable.asking.start_ns):
        return remaining
    return remaining.scaled_before({part: 1 - share for part, share in graph.within(avoidable.asking).items()})


def no_alloc(graph: Graph, value: Value, draw: Draw) -> Graph:
    """No `cudaMalloc` or `cudaFree` in steady-state steps: PyTorch's caching allocator has enough memory.

    Models: calls that allocate or free driver memory (cudaMalloc, cudaFree, cudaHostAlloc) take no time, and the waits
    inside them disappear: cudaFree waits for all work of the GPU. The next wait takes over part of that.

    Cannot know: which change achieves it. Usually it is no `empty_cache()` in the loop, tensors of the same sizes in
    every step, or more free memory.
    """
    return graph.scaled_before({"alloc": 0.0}).without_calls(graph.host.kind == Stop.ALLOC)


def steps_count(text: str) -> Value:
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
    avoidable = waits(graph)
    in_steps = avoidable.stops[(graph.step_of[avoidable.stops] >= 0) & (graph.host.awaited_op[avoidable.stops] >= 0)]
    if len(in_steps):
        return None
    if avoidable.needed:
        return "its only waits are for result sizes, which the host needs to continue"
    return "no step waits to read a value from the GPU"


def _every_nth_refusal(graph: Graph, value: Value) -> str | None:
    reason = _sync_refusal(graph, value)
    if reason is None and graph.steps.found_by == "whole run":
        return "no steps were detected, so there is no N-th step"
    return reason


def _alloc_refusal(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "the run contains no GPU work"
    calls = (graph.host.kind == Stop.ALLOC) & (graph.step_of >= 0)
    return None if calls.any() else "its steps do not call cudaMalloc or cudaFree"


SYNCING = (
    Rewrite(
        name="no_syncs",
        edit=no_syncs,
        ceiling=lambda graph, value: dropped(graph, asked=False),
        grade="A",
        about="the host never waits to read a value from the GPU",
        ceiling_means="removing these lines of code",
        lacking=_sync_refusal,
        price="printed or logged values appear later",
        code=lambda graph, value: "total += loss.detach()  # on the GPU; total.item() once, after the loop",
    ),
    Rewrite(
        name="sync_every",
        edit=sync_every,
        ceiling=lambda graph, value: dropped(graph, asked=False),
        grade="A",
        about="values read from the GPU only in every N-th step",
        ceiling_means="removing these lines of code",
        lacking=_every_nth_refusal,
        takes="a number of steps",
        usual=50,
        parse=steps_count,
        price="values are printed or logged only in every N-th step",
        code=lambda graph, value: f"if step % {value} == 0:\n    print(loss.item())",
    ),
    Rewrite(
        name="no_alloc",
        edit=no_alloc,
        ceiling=lambda graph, value: no_alloc(graph, value, Draw()),
        grade="A",
        about="no cudaMalloc or cudaFree in steady-state steps",
        ceiling_means="allocation at no cost",
        lacking=_alloc_refusal,
        code=lambda graph, value: "# no torch.cuda.empty_cache() in the loop; batches of one size (drop_last=True)",
    ),
)
