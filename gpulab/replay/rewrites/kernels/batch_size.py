"""A larger or smaller batch: the same calls for more work in each."""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.copies.table import direction
from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.engine.graph_work import LEAST_NS, calls, pieces_of
from gpulab.replay.rewrites.engine.lower_bounds import least_share, multiplying, own_peak, shrunk
from gpulab.replay.rewrites.kernels.compile_on_cpu import batch_on_cpu
from gpulab.wording import number

MOST = 256.0
CALL_NS = 10_000.0  # of a copy's call, whatever its size
SMALL_NS = 10_000.0  # a kernel as short as this has few blocks, where their number was not recorded
WEIGHTS = (Family.OPTIMIZER, Family.COLLECTIVE, Family.FILL)  # work on parameters: of the same size for any batch
GROWN = (0.3, 1.0)  # of the way from what full waves of blocks say to as many times as long
POWER, POWER_LESS = (0.95, 1.08), (1.1, 0.95)  # of the factor: 3.6 to 4.3 times as long was measured for 4 times
CODE = (0.0, 1.0)  # of the user's own Python between steps, how much goes with the batch


def batch(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A batch N times as large: per step. What matters is the time per sample, which is the step over N.

    Models: the host calls what it called, at the same cost; loading and copies to the device take N times as long.
    Kernels that fill the GPU take N times as long; those with fewer blocks than it holds at once grow only when its
    multiprocessors are full, wave by wave. Work on parameters (optimizer, gradients exchanged) stays. Python code of
    the user's own, outside PyTorch, grows by nothing to N times. On a CPU matrix products take N^0 to N times as
    long, other operators N^0.8 to N^1.2, their calls what they took.

    Priced from: the numbers of blocks in this run, where recorded.

    Cannot know: whether it fits into memory; other kernels that libraries pick for other sizes; caches. And how fast
    the loss falls with fewer, larger steps, which is another question than speed.
    """
    times = work_of_batch(graph, value)
    if not graph.on_gpu:
        return batch_on_cpu(graph, times, draw)
    python = 1 + (times - 1) * draw.between("batch_python", *(CODE if times >= 1 else CODE[::-1]))
    place = draw.between("batch_grown", *(GROWN if times >= 1 else GROWN[::-1]))
    least = growth_at_least(graph, times)
    power = draw.between("batch_power", *(POWER if times >= 1 else POWER_LESS))
    growth = least + (times**power - least) * place
    grown = graph.scaled_before({"loader": times, "python": python})
    return _with_larger(grown, times, growth)


def batch_ceiling(graph: Graph, value: Value) -> Graph:
    """A larger batch that takes no longer; of a smaller one what sizes tell, in proportion, and the rest in no time.

    Not only in proportion: what no longer fills a wave of blocks, or then fits into the cache, gains more than that.
    """
    times = work_of_batch(graph, value)
    if times >= 1:
        return _unsplit(graph)
    fewer = graph.scaled_before({"loader": times, "python": times, "compute": 0.0})
    if not graph.on_gpu:
        return fewer
    found = pieces_of(graph)
    shrinks = ~(found.updates & ~found.is_family(Family.COLLECTIVE))
    left = shrunk(fewer, shrinks, least_share(graph, own_peak(graph)) * times)
    copying, usual = calls(graph).copies_in, np.minimum(left.device.latency_ns, graph.usual.latency_ns)
    return left.with_host(own_ns=np.where(copying, 0.0, left.host.own_ns)).with_device(latency_ns=usual)


def _unsplit(graph: Graph) -> Graph:
    """Products fill a GPU without being split: no kernel adds up their parts."""
    if not graph.on_gpu:
        return graph
    matrix = pieces_of(graph).is_family(Family.MATRIX)
    return shrunk(graph, multiplying(graph, matrix) & ~matrix, np.zeros(len(matrix)))


def work_of_batch(graph: Graph, value: Value) -> float:
    """How many times the samples a step then holds."""
    if isinstance(value, str):
        return float(value.removeprefix("x"))
    known = _batch_size(graph)
    return float(value) / known if known else 1.0


def _batch_size(graph: Graph) -> int | None:
    sizes = {loader.batch_size for loader in graph.run.loaders if loader.batch_size}
    return sizes.pop() if len(sizes) == 1 else None


def growth_at_least(graph: Graph, times: float) -> Floats:
    """How many times as long each piece of work takes at least, by full waves of blocks."""
    waves, small = _filling(graph)
    with np.errstate(invalid="ignore", divide="ignore"):
        told = np.ceil(waves * times) / np.ceil(waves)
    growth = np.where(np.isfinite(told), told, np.where(small, times**0.5, times))
    return np.clip(growth, min(1.0, times), max(1.0, times))


@once
def _filling(graph: Graph) -> tuple[Floats, Mask]:
    found = pieces_of(graph)
    return found.waves, np.asarray(found.dur_ns < SMALL_NS, bool)


def _with_larger(graph: Graph, times: float, growth: Floats) -> Graph:
    """Device work grown, all but what it takes to start; copies as their bytes, and work on weights not at all."""
    device, found = graph.device, pieces_of(graph)
    least = np.minimum(device.dur_ns, LEAST_NS)
    same = found.is_family(*WEIGHTS) | found.updates
    into = inward(graph)
    factor = np.where(same, 1.0, np.where(into, times, growth))
    # From pageable memory the host itself copies first: the call lasts longer, and the work begins later.
    usual = np.minimum(device.latency_ns, graph.usual.latency_ns)
    latency = np.where(into, usual + (device.latency_ns - usual) * times, device.latency_ns)
    copying = calls(graph).copies_in
    call = np.minimum(graph.host.own_ns, CALL_NS)
    own = np.where(copying, call + (graph.host.own_ns - call) * times, graph.host.own_ns)
    longer = graph.with_device(dur_ns=least + (device.dur_ns - least) * factor, latency_ns=latency)
    return longer.with_host(own_ns=own)


@once
def inward(graph: Graph) -> Mask:
    """Copies to the device."""
    return graph.run.event_rows.matching(lambda word: direction(word) == "HtoD")[graph.device.event]


def batch_lacking(graph: Graph, value: Value) -> str | None:
    """Why another batch cannot be told."""
    if not isinstance(value, str) and _batch_size(graph) is None:
        return "the size of its batches was not recorded, or there were several; ask for batch=x2, twice what it is"
    times = work_of_batch(graph, value)
    if not 1 / MOST <= times <= MOST:
        return f"{number(times)} times the batch is too far from what was recorded"
    if graph.steps.found_by == "whole run" and not graph.on_gpu and not graph.run.loaders:
        return "no steps were found, so nothing tells what a batch is"
    return None


def _parse(typed: str) -> Value:
    times = re.fullmatch(r"[xX*]?(\d+(?:\.\d+)?)[xX]?", typed)
    if times is None or float(times[1]) <= 0:
        raise ValueError("a batch is a number of samples, or times as many as now: x2")
    if typed.isdigit():
        return int(typed)
    return f"x{float(times[1]):g}"


BATCH = (
    Rewrite(
        name="batch",
        calms=False,
        edit=batch,
        ceiling=batch_ceiling,
        grade="C",
        about="more samples in each step",
        ceiling_means="even the growth that would suit you best",
        lacking=batch_lacking,
        takes="a number of samples, or x2 for twice as many as now",
        usual="x2",
        parse=_parse,
        price="memory grows with it, and the learning rate must fit",
        work=work_of_batch,
    ),
)
