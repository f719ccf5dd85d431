"""CUDA graphs: the work of a step recorded once and then started by a single call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import NONE, Graph, Stop
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.graph_work import calls
from gpulab.replay.rewrites.kernels.compile import waiting

LAUNCH_NS = (10_000.0, 30_000.0)  # of the host, to start a whole graph
TURN_NS = (1_000.0, 1_500.0)  # from one kernel of a graph to the next
HELD_FRAC = 0.8  # of a step's kernels, that one graph must hold
OWN_CODE_NS = 5_000_000.0  # a stretch of Python this long is work of its own, which a graph cannot do again
GRAPHED_ALREADY = 0.5


def cuda_graphs(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A CUDA graph of the step, or `torch.compile(mode="reduce-overhead")`: one call starts all of its kernels.

    Models: in each step the longest stretch of kernels in which the host neither waits, nor allocates, nor copies
    from or to its own memory, nor runs Python code of its own for 5 ms. There the host costs nothing but one
    launch of 10 to 30 us; kernels follow one another within 1.0 to 1.5 us, or as closely as they did. Loading and
    what lies outside the stretch stay as they are.

    Priced from: launches of graphs and gaps between their kernels in recorded traces from V100 to B200.

    Cannot know: the copies of inputs into the graph's own buffers, and whether sizes change from epoch to epoch.
    """
    return _captured(
        graph, draw.between("graph_launch", *LAUNCH_NS), draw.between("graph_turn", *TURN_NS), keep_before=True
    )


def cuda_graphs_ceiling(graph: Graph, value: Value) -> Graph:
    """A host that costs nothing in any stretch, each a graph of its own, and kernels back to back."""
    return _captured(graph, 0.0, 0.0, keep_before=False, all_of_them=True)


def _captured(graph: Graph, launch_ns: float, turn_ns: float, *, keep_before: bool, all_of_them: bool = False) -> Graph:
    host, device, region = graph.host, graph.device, regions(graph, all_of_them=all_of_them)
    inside = region.inside.copy()
    own, room, before = host.own_ns.copy(), host.room.copy(), dict(host.before_ns)
    opens = region.opens
    rest = inside.copy()
    rest[opens] = False
    own[inside] = 0.0
    own[opens] = launch_ns
    room[rest] = NONE  # a graph takes one place in the queue
    for part, ns in before.items():
        if part != "loader":
            # Before its first kernel stands code that is not of the graph, too: only calls are known to be gone.
            gone = rest if keep_before and part == "python" else inside
            before[part] = np.where(gone, 0.0, ns)
    mine = (device.call >= 0) & inside[np.maximum(device.call, 0)]
    follows = mine.copy()
    follows[host.first[opens]] = False
    latency = np.where(follows, 0.0, device.latency_ns)
    turn = np.where(mine, np.minimum(device.turn_ns, turn_ns), device.turn_ns)
    lag = np.where(mine, np.minimum(device.lag_ns, turn_ns), device.lag_ns)
    return graph.with_host(own_ns=own, room=room, before_ns=before).with_device(
        latency_ns=latency, turn_ns=turn, lag_ns=lag
    )


class Regions(NamedTuple):
    """What a graph could hold of each step."""

    inside: Mask  # stops
    opens: Ints  # the first stop of each
    counts: Ints  # kernels in each step that counts
    held: Ints  # of these, in its region
    breaks: Mask  # stops that no graph can hold, among the kernels of a step


def regions(graph: Graph, *, all_of_them: bool = False) -> Regions:
    """In each step the stretch with most kernels between two breaks, or every one; with waits as they now are."""
    host = graph.host
    work = np.diff(host.first)
    kernels = np.where(calls(graph).kernels, work, 0)
    breaks = _breaks(graph)
    edge = breaks | (host.stop == Stop.MARK)
    # A break by Python before a call ends a stretch and leaves the call itself to the next; other breaks hold none.
    long_python = _own_code(graph) & ~edge
    _, segment = np.unique(np.cumsum(edge | long_python), return_inverse=True)
    weight = np.bincount(segment, weights=np.where(edge, 0, kernels))
    _, opening = np.unique(segment, return_index=True)
    step = np.cumsum(host.stop == Stop.MARK)[opening]
    order = np.lexsort((np.arange(len(weight)), -weight, step))
    best = order[np.unique(step[order], return_index=True)[1]]
    best = np.flatnonzero(weight) if all_of_them else best[weight[best] > 0]
    inside, opens = _between(np.isin(segment, best) & ~edge, segment, kernels > 0)
    total, held = (np.append(0, np.cumsum(each)) for each in (kernels, np.where(inside, kernels, 0)))
    until, since = graph.step_last + 1, graph.step_first + 1
    return Regions(inside, opens, total[until] - total[since], held[until] - held[since], breaks | long_python)


def _between(region: Mask, segment: Ints, works: Mask) -> tuple[Mask, Ints]:
    """Of each region the stops from its first kernel to its last, and the first of each."""
    mine = np.flatnonzero(region & works)
    new = np.flatnonzero(np.diff(segment[mine], prepend=-1) != 0)
    opens = mine[new]
    closes = mine[np.append(new[1:], len(mine)) - 1] if len(mine) else mine
    depth = np.zeros(len(region) + 1, np.int64)
    np.add.at(depth, opens, 1)
    np.add.at(depth, closes + 1, -1)
    return np.cumsum(depth[:-1]) > 0, opens


def _breaks(graph: Graph) -> Mask:
    """Stops that cannot be part of a graph: waits, allocations, synchronisations, copies from and to the host."""
    stop = graph.host.stop
    return np.asarray(waiting(graph) | (stop == Stop.ALLOC) | (stop == Stop.SYNC) | calls(graph).copies_across, bool)


def _own_code(graph: Graph) -> Mask:
    python = graph.host.before_ns.get("python")
    loader = graph.host.before_ns.get("loader")
    none = np.zeros(len(graph.host))
    return np.asarray(
        ((none if python is None else python) >= OWN_CODE_NS) | ((none if loader is None else loader) > 0)
    )


_CODE = """graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # after a few ordinary steps
    step(batch)  # forward, backward, optimizer.step()
# then for each new batch:
batch.copy_(new_batch)
graph.replay()"""


def cuda_graphs_lacking(graph: Graph, value: Value) -> str | None:
    """Why a CUDA graph cannot be told."""
    if not graph.on_gpu:
        return "the run holds no work of a GPU"
    several = np.diff(graph.host.first)
    if several[several > 1].sum() > GRAPHED_ALREADY * max(1, several.sum()):
        return "its kernels are started as graphs already"
    found = regions(graph)
    counts, held = found.counts, found.held
    if not counts.sum():
        return "no call that starts a kernel was recorded"
    if counts.min() != counts.max():
        return f"the number of kernels differs from step to step ({counts.min():,} to {counts.max():,})"
    if held.min() < HELD_FRAC * counts.max():
        return (
            f"a graph could hold {held.min():,} of the {counts.max():,} kernels of a step at most: "
            f"{_what_breaks(graph, found)} stand between them"
        )
    return None


def _what_breaks(graph: Graph, found: Regions) -> str:
    """The kinds of stops that interrupt a step, most first."""
    names = graph.run.event_rows.words("name")
    inside = found.breaks & (graph.step_of >= 0)
    codes = names.codes[graph.host.event[inside & (graph.host.event >= 0)]]
    told, count = np.unique(codes[codes >= 0], return_counts=True)
    words = [names.vocabulary[code] for code in told[np.argsort(-count, kind="stable")][:3].tolist()]
    return ", ".join(words) or "stretches of Python code"


GRAPHS = (
    Rewrite(
        name="cuda_graphs",
        edit=cuda_graphs,
        ceiling=cuda_graphs_ceiling,
        grade="C",
        about="the kernels of a step started by one call",
        ceiling_means="even calling at no cost",
        lacking=cuda_graphs_lacking,
        price="inputs stay in one place and of one size; optimizers need capturable=True; memory is held for the graph",
        code=lambda graph, value: _CODE,
    ),
)
