"""torch.compile: chains of passes over memory become one kernel each, and operators are not called one by one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import NONE, Floats, Graph, Stop
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.engine.graph_work import CALLED, calling_ns, calls, pieces_of
from gpulab.replay.rewrites.engine.lower_bounds import least_share, multiplying, own_peak, shrunk
from gpulab.replay.rewrites.kernels.compile_on_cpu import compiled_on_cpu, lacking_compile, least_on_cpu

KEPT = (0.05, 0.6)  # of the passes of a chain besides its longest: inputs of its own, and what the backward pass needs
WRITTEN = (0.85, 1.1)  # a kernel that a compiler wrote, beside PyTorch's own
KERNEL_NS = (3_000.0, 8_000.0)  # of the host, for each kernel that is left: compiled code calls launchers directly
ENTERED_NS = (20_000.0, 80_000.0)  # of the host, for each graph: guards, and handing tensors over
COMPILED_ALREADY = 0.5  # of the time in passes over memory


def compile_(graph: Graph, value: Value, draw: Draw) -> Graph:
    """`torch.compile`: kernels fused, operators no longer called one by one.

    Models: in the forward and backward pass each chain of passes over memory (elementwise work, norms, softmax) that
    no product, copy or wait of the host interrupts becomes one kernel: its longest pass, and 5 to 60 % of the others.
    Each kernel that is left costs the host 3 to 8 us, and each graph 20 to 80 us more; a graph ends where the host
    waits for the GPU. The optimizer, loading and the user's own Python stay. On a CPU the calls of operators become
    few, and elementwise operators share their passes over memory.

    Priced from: what Triton's launchers and compiled graphs cost the host on current machines; nanoGPT on A100,
    250 -> 135 ms as published, is one anchor.

    Cannot know: what of the step you compile (the loss is taken to be part of it), where Python code breaks the
    graph, sizes that change (each is compiled again), the time of the first call (up to minutes), and what
    max-autotune might find.
    """
    if not graph.on_gpu:
        return compiled_on_cpu(graph, draw)
    found = chains(graph)
    kept, written = draw.between("compile_kept", *KEPT), draw.between("compile_written", *WRITTEN)
    longest, whole = found.of(graph.device.dur_ns)
    fused = _fused(graph, found, written * (longest + kept * (whole - longest)))
    each, entered = draw.between("compile_kernel", *KERNEL_NS), draw.ratio("compile_entered", *ENTERED_NS)
    return _called(fused, found, each, entered)


def compile_ceiling(graph: Graph, value: Value) -> Graph:
    """Of what is compiled, the arithmetic of products at their peak, where sizes tell it; a host that costs nothing.

    A pass may become part of the product before or after it, and products are padded, and take other kernels.
    """
    if not graph.on_gpu:
        return least_on_cpu(graph)
    found = chains(graph)
    mine = found.inside[np.maximum(graph.device.call, 0)] & (graph.device.call >= 0)
    matrix = multiplying(graph, pieces_of(graph).is_family(Family.MATRIX))
    share = np.where(matrix, least_share(graph, own_peak(graph)), 0.0)
    return _called(shrunk(graph, mine, share), found, 0.0, 0.0)


class Chains(NamedTuple):
    """Passes over memory in a row: they become one. Chains of one are among them."""

    member: Ints  # device work, in order of call
    first: Ints  # where each chain begins among the members
    inside: Mask  # stops whose calls are compiled
    opens: Ints  # the first such stop of each graph

    def of(self, values: Floats) -> tuple[Floats, Floats]:
        """The largest value and the sum of each chain."""
        mine = values[self.member]
        if not len(mine):
            return mine, mine
        return np.maximum.reduceat(mine, self.first), np.add.reduceat(mine, self.first)

    @property
    def later(self) -> Ints:
        """The work that is gone: all but the first of each chain."""
        keep = np.ones(len(self.member), bool)
        keep[self.first] = False
        return self.member[keep]


def chains(graph: Graph) -> Chains:
    """The chains of a graph, with its waits as they are."""
    host, found = graph.host, pieces_of(graph)
    inside = compiled_stops(graph)
    group = graph_of_stop(graph, inside)
    call = np.maximum(graph.device.call, 0)
    member = np.flatnonzero(found.is_family(Family.STREAM) & inside[call] & (graph.device.call >= 0))
    joined = np.zeros(len(member), bool)
    before = graph.device.before[member]
    joined[1:] = (before[1:] == member[:-1]) & (group[call[member[1:]]] == group[call[member[:-1]]])
    # What lies between two of them in order of call, on another stream or not, is no part of a chain.
    joined[1:] &= member[1:] - member[:-1] == 1
    stops = np.flatnonzero(inside)
    opens = stops[np.flatnonzero(np.diff(group[stops], prepend=-1) != 0)] if len(host) else stops
    return Chains(member, np.flatnonzero(~joined), inside, opens)


def compiled_stops(graph: Graph) -> Mask:
    """Calls of the forward and backward pass: no optimizer, no copies of batches, no waits, no whole graphs."""
    return _model_calls(graph) & ~waiting(graph)


@once
def _model_calls(graph: Graph) -> Mask:
    told, host = calls(graph), graph.host
    one = np.diff(host.first) <= 1  # a call whose work was not recorded is one as well
    kinds = (host.stop == Stop.LAUNCH) | (host.stop == Stop.COPY_CALL)
    return np.asarray(one & kinds & ~told.updates & ~told.clears & ~told.copies_in, bool)


def waiting(graph: Graph) -> Mask:
    """Stops where the host waits for the device; copies within the device, which never hold it, are not among them."""
    return np.asarray((graph.host.wait != NONE) & ~calls(graph).copies_within, bool)


def graph_of_stop(graph: Graph, compiled: Mask) -> Ints:
    """A number for each stop, another where a compiled graph ends: at steps, at waits, from one thread to the next."""
    host, stops = graph.host, np.flatnonzero(compiled)
    thread = _threads(graph)[stops]
    ends = (host.stop == Stop.MARK) | waiting(graph)
    ends[stops[1:][thread[1:] != thread[:-1]]] = True
    return np.cumsum(ends)


@once
def _threads(graph: Graph) -> Ints:
    event = graph.host.event
    return np.where(event >= 0, graph.run.event_rows["thread"][np.maximum(event, 0)], NONE)


def _fused(graph: Graph, found: Chains, chain_ns: Floats) -> Graph:
    """Each chain's time in its first kernel; the others are gone."""
    dur, turn = graph.device.dur_ns.copy(), graph.device.turn_ns.copy()
    later = found.later
    dur[found.member[found.first]] = chain_ns
    dur[later], turn[later] = 0.0, 0.0
    return graph.with_device(dur_ns=dur, turn_ns=turn)


def _called(graph: Graph, found: Chains, each_ns: float, entered_ns: float) -> Graph:
    """The host's share: so much for each kernel that is left and each graph, where it was more."""
    target = np.where(found.inside, each_ns, np.inf)
    gone = graph.device.call[found.later]
    target[gone] = 0.0
    now = calling_ns(graph)
    factor = np.minimum(1.0, np.divide(target, now, out=np.ones(len(now)), where=now > 0))
    called = graph.scaled_before(dict.fromkeys(CALLED, factor)).with_host(own_ns=graph.host.own_ns * factor)
    added = np.zeros(len(now))
    added[found.opens] = entered_ns
    return called.with_more_before("dispatch", added)


def compile_lacking(graph: Graph, value: Value) -> str | None:
    """Why compiling cannot be told."""
    if not graph.on_gpu:
        return lacking_compile(graph)
    found = pieces_of(graph)
    made, passes = (found.dur_ns[found.is_family(each)].sum() for each in (Family.COMPILED, Family.STREAM))
    if any(model.compiled for model in graph.run.models) or made > COMPILED_ALREADY * (made + passes):
        return "it is compiled already"
    if not compiled_stops(graph).any():
        return "no call of a forward or backward pass was recorded, so nothing tells what could be compiled"
    return None


def _code(graph: Graph, value: Value) -> str:
    model = next((each.name for each in graph.run.models if each.name), "model")
    return f"{model} = torch.compile({model})"


FUSION = (
    Rewrite(
        name="compile",
        calms=False,
        edit=compile_,
        ceiling=compile_ceiling,
        grade="C",
        about="the model compiled: chains of small kernels fused, operators not called one by one",
        ceiling_means="even perfect fusion, called at no cost,",
        lacking=compile_lacking,
        price="the first call takes up to minutes, and each new size of input another",
        code=_code,
    ),
)
