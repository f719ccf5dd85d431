"""Waits of the host for the device, not made, or in every N-th step only; and memory that need not be asked for."""

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

MOST_STEPS = 100_000


@dataclass(frozen=True, eq=False)
class Waits:
    """Calls that wait for the device and need not, and the copies to the host that they are about."""

    stops: Ints
    reads: Ints  # device work: copies to the host
    asking: Spans  # when the host was inside operators that ask for a value
    needed: int  # calls that must stay: how many elements there are, the host must know to go on


@once
def waits(graph: Graph) -> Waits:
    """The waits of the recorded steps that exist for the sake of a value, or of waiting."""
    events, device, host = graph.run.event_rows, graph.device, graph.host
    words = events.words("name")
    back = np.array([direction(word) == "DtoH" for word in words.vocabulary] + [False])
    is_read = (events["kind"][device.event] == Kind.MEMCPY) & back[events["name"][device.event]] & (device.call >= 0)
    reading = np.zeros(len(host), bool)
    reading[device.call[is_read]] = True
    looping = np.zeros(len(host), bool)
    marks = np.flatnonzero(host.stop == Stop.MARK)
    looping[marks[0] : marks[-1] + 1] = True
    mine: Mask = looping & ((host.stop == Stop.SYNC) | ((host.stop == Stop.COPY_CALL) & reading))
    mine[writes(graph).asking] = False
    shapes = _inside(graph.run, np.flatnonzero(mine), host.event, SHAPES)
    stops = np.flatnonzero(mine)[~shapes]
    gone = np.zeros(len(host) + 1, bool)
    gone[stops] = True
    asking = _outer(graph.run, VALUES)
    return Waits(
        stops=stops,
        reads=np.flatnonzero(is_read & gone[device.call]),
        asking=asking.spans() if len(asking) else nothing(),
        needed=int(shapes.sum()),
    )


def _outer(run: Run, names: tuple[str, ...]) -> Rows:
    """The outermost operators of these names."""
    events = run.event_rows
    ops = events.where(np.flatnonzero(events.matching(lambda word: word in names) & (events["kind"] == Kind.OP)))
    return ops.where(outermost(ops)) if len(ops) else ops


def _inside(run: Run, stops: Ints, event: Ints, names: tuple[str, ...]) -> Mask:
    """Which of these stops lie inside an operator of these names, on its thread."""
    ops = _outer(run, names)
    if not len(ops) or not len(stops):
        return np.zeros(len(stops), bool)
    found: Mask = holders(ops, run.event_rows.where(event[stops])) >= 0
    return found


def no_syncs(graph: Graph, value: Value, draw: Draw) -> Graph:
    """No value is read from the GPU in the loop, and nothing is waited for: no `.item()`, `.cpu()`, `synchronize()`.

    Models: every wait of the host for the device goes, with the copy to the host that it is about; what remains of
    such a line of code is an operator that keeps the value on the GPU, as cheap for the host as the one it replaces.
    Waits for a copy to the GPU stay (`pin_memory` takes those away), and so do those of operators whose result has as
    many elements as the data decide (nonzero, boolean masks): the host must know the number. Nothing is assumed: the
    replay decides what a wait cost, and the next wait inherits it. GradScaler reads one value a step; only bf16 makes
    that needless.

    Cannot know: whether the loop can do without the value.
    """
    return dropped(graph)


def sync_every(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Values are read from the GPU, and waited for, in every N-th step only.

    Models: steps without waits are those of `no_syncs`. A step with them loses what the replay says it loses now, as
    after a wait the queue of the GPU must be filled again; that is spread over N steps, so the step told here is the
    mean over N steps, not the median one.

    Cannot know: whether somebody needs the values earlier.
    """
    return every(graph, dropped(graph), float(value), "waits")


def dropped(graph: Graph, *, asked: bool = True) -> Graph:
    """The graph without these waits; without `asked`, the operators that ask for values are not called either."""
    found = waits(graph)
    left = graph.without_calls(found.stops).without_work(found.reads)
    if asked or not len(found.asking.start_ns):
        return left
    return left.scaled_before({part: 1 - share for part, share in graph.within(found.asking).items()})


def no_alloc(graph: Graph, value: Value, draw: Draw) -> Graph:
    """No memory is asked of the driver, or given back to it, in steady steps: PyTorch's allocator has what it needs.

    Models: calls that allocate or free (cudaMalloc, cudaFree, cudaHostAlloc) take no time, and the waits inside them
    go: cudaFree waits for all work of the GPU. The next wait inherits that.

    Cannot know: what has to be done for it: mostly no `empty_cache()` in the loop, tensors of the same sizes in every
    step, or memory enough that none is taken back.
    """
    return graph.scaled_before({"alloc": 0.0}).without_calls(graph.host.stop == Stop.ALLOC)


def steps_count(text: str) -> Value:
    """A number of steps, as somebody types it."""
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number of steps") from None
    if not 1 <= count <= MOST_STEPS:
        raise ValueError(f"there are no {count} steps to spread it over")
    return count


def _no_waits(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "the run holds no work of a GPU"
    found = waits(graph)
    inside = found.stops[(graph.step_of[found.stops] >= 0) & (graph.host.wait[found.stops] >= 0)]
    if len(inside):
        return None
    if found.needed:
        return "the only waits are for how many elements a result has: the host must know that to go on"
    return "no step of it waits to read a value from the GPU"


def _no_steps(graph: Graph, value: Value) -> str | None:
    why = _no_waits(graph, value)
    if why is None and graph.steps.found_by == "whole run":
        return "no steps were found in it, so there is no N-th one"
    return why


def _no_calls(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "the run holds no work of a GPU"
    calls = (graph.host.stop == Stop.ALLOC) & (graph.step_of >= 0)
    return None if calls.any() else "its steps ask the driver for no memory"


SYNCING = (
    Rewrite(
        name="no_syncs",
        edit=no_syncs,
        ceiling=lambda graph, value: dropped(graph, asked=False),
        grade="A",
        about="the host never waits to read a value from the GPU",
        ceiling_means="even no such line of code",
        lacking=_no_waits,
        price="values that are printed or logged come later",
        code=lambda graph, value: "total += loss.detach()  # on the GPU; total.item() once, after the loop",
    ),
    Rewrite(
        name="sync_every",
        edit=sync_every,
        ceiling=lambda graph, value: dropped(graph, asked=False),
        grade="A",
        about="values are read from the GPU in every N-th step only",
        ceiling_means="even no such line of code",
        lacking=_no_steps,
        takes="a number of steps",
        usual=50,
        parse=steps_count,
        price="values that are printed or logged come in every N-th step",
        code=lambda graph, value: f"if step % {value} == 0:\n    print(loss.item())",
    ),
    Rewrite(
        name="no_alloc",
        edit=no_alloc,
        ceiling=lambda graph, value: no_alloc(graph, value, Draw()),
        grade="A",
        about="no memory is asked of the driver in steady steps",
        ceiling_means="even free allocation",
        lacking=_no_calls,
        code=lambda graph, value: "# no torch.cuda.empty_cache() in the loop; batches of one size (drop_last=True)",
    ),
)
