"""Batch size: the same calls, with more or less work in each."""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction
from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import KernelFamily
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.rewrites.engine.graph_work import KERNEL_START_NS, call_roles, classified_ops
from gpulab.replay.rewrites.engine.lower_bounds import (
    minimum_time_frac,
    ops_of_same_operators,
    peak_of_run_gpu,
    shrink_ops,
)
from gpulab.replay.rewrites.kernels.compile_on_cpu import batch_on_cpu
from gpulab.wording import number

MAX_FACTOR = 256.0
CALL_NS = 10_000.0  # of a copy call, independent of its size
SMALL_NS = 10_000.0  # a kernel shorter than this is assumed to have few blocks, if their number was not recorded
PARAMETER_FAMILIES = (
    KernelFamily.OPTIMIZER,
    KernelFamily.COLLECTIVE,
    KernelFamily.FILL,
)  # work on parameters, which does not depend on the batch
GROWTH_POSITION = (0.3, 1.0)  # position between growth by full waves of blocks (0) and proportional growth (1)
# Exponent of the factor: 3.6 to 4.3 times as long was measured for a factor of 4.
POWER, POWER_SMALLER = ((0.95, 1.08), (1.1, 0.95))
PYTHON_SHARE = (0.0, 1.0)  # share of the user's own Python between steps that grows with the batch


def batch(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A batch N times as large. The time is per step; compare the time per sample, which is the step over N.

    Models: the host makes the same calls at the same cost; loading and H2D copies take N times as long. Kernels that
    fill the GPU take N times as long; kernels with fewer blocks than the GPU holds at once grow only when its
    multiprocessors are full, wave by wave. Work on parameters (optimizer, gradient communication) does not change. The
    user's own Python outside PyTorch takes 1 to N times as long. On a CPU, matrix products take N^0 to N times as long,
    other operators N^0.8 to N^1.2; dispatch does not change.

    Priced from: the numbers of blocks in this run, if recorded.

    Cannot know: whether it fits into memory; which other kernels libraries choose for other sizes; caches. Nor how fast
    the loss falls with fewer, larger steps, which is a separate question from speed.
    """
    times = batch_factor(graph, value)
    if not graph.on_gpu:
        return batch_on_cpu(graph, times, draw)
    python = 1 + (times - 1) * draw.between("batch_python", *(PYTHON_SHARE if times >= 1 else PYTHON_SHARE[::-1]))
    position = draw.between("batch_grown", *(GROWTH_POSITION if times >= 1 else GROWTH_POSITION[::-1]))
    min_growth = minimum_growth(graph, times)
    power = draw.between("batch_power", *(POWER if times >= 1 else POWER_SMALLER))
    growth = min_growth + (times**power - min_growth) * position
    scaled = graph.scaled_before({"loader": times, "python": python})
    return _scale_work(scaled, times, growth)


def batch_best_case(graph: Graph, value: Value) -> Graph:
    """A larger batch in the same time; a smaller batch at its minimum arithmetic and traffic, and the rest in no time.

    The bound is not proportional, because a smaller batch may save a wave of blocks or fit into the cache.
    """
    times = batch_factor(graph, value)
    if times >= 1:
        return _unsplit(graph)
    smaller = graph.scaled_before({"loader": times, "python": times, "compute": 0.0})
    if not graph.on_gpu:
        return smaller
    kernels = classified_ops(graph)
    shrinks = ~(kernels.in_optimizer & ~kernels.family_mask(KernelFamily.COLLECTIVE))
    shrunk_graph = shrink_ops(smaller, shrinks, minimum_time_frac(graph, peak_of_run_gpu(graph)) * times)
    copying, usual = (
        call_roles(graph).h2d_copies,
        np.minimum(shrunk_graph.device.latency_ns, graph.usual_delays.latency_ns),
    )
    return shrunk_graph.with_host(call_ns=np.where(copying, 0.0, shrunk_graph.host.call_ns)).with_device(
        latency_ns=usual
    )


def _unsplit(graph: Graph) -> Graph:
    """Return the graph without split-K reductions: a larger product fills the GPU without being split."""
    if not graph.on_gpu:
        return graph
    matrix = classified_ops(graph).family_mask(KernelFamily.MATRIX)
    return shrink_ops(graph, ops_of_same_operators(graph, matrix) & ~matrix, np.zeros(len(matrix)))


def batch_factor(graph: Graph, value: Value) -> float:
    """Return the factor on the samples per step."""
    if isinstance(value, str):
        return float(value.removeprefix("x"))
    batch_size = _batch_size(graph)
    return float(value) / batch_size if batch_size else 1.0


def _batch_size(graph: Graph) -> int | None:
    sizes = {loader.batch_size for loader in graph.run.loaders if loader.batch_size}
    return sizes.pop() if len(sizes) == 1 else None


def minimum_growth(graph: Graph, times: float) -> Floats:
    """Return the minimum growth of each device op, by full waves of blocks."""
    waves, small = _waves_and_small(graph)
    with np.errstate(invalid="ignore", divide="ignore"):
        wave_growth = np.ceil(waves * times) / np.ceil(waves)
    growth = np.where(np.isfinite(wave_growth), wave_growth, np.where(small, times**0.5, times))
    return np.clip(growth, min(1.0, times), max(1.0, times))


@cached_per_run
def _waves_and_small(graph: Graph) -> tuple[Floats, Mask]:
    kernels = classified_ops(graph)
    return kernels.waves, np.asarray(kernels.dur_ns < SMALL_NS, bool)


def _scale_work(graph: Graph, times: float, growth: Floats) -> Graph:
    """Scale device work, except kernel start times; copies in proportion to their bytes; not the work on parameters."""
    device, kernels = graph.device, classified_ops(graph)
    start_ns = np.minimum(device.dur_ns, KERNEL_START_NS)
    is_unchanged = kernels.family_mask(*PARAMETER_FAMILIES) | kernels.in_optimizer
    h2d = is_h2d_copy(graph)
    factor = np.where(is_unchanged, 1.0, np.where(h2d, times, growth))
    # For pageable memory the host copies first: the call takes longer, and the device copy starts later.
    usual = np.minimum(device.latency_ns, graph.usual_delays.latency_ns)
    latency = np.where(h2d, usual + (device.latency_ns - usual) * times, device.latency_ns)
    copying = call_roles(graph).h2d_copies
    call_ns = np.minimum(graph.host.call_ns, CALL_NS)
    own_ns = np.where(copying, call_ns + (graph.host.call_ns - call_ns) * times, graph.host.call_ns)
    longer = graph.with_device(dur_ns=start_ns + (device.dur_ns - start_ns) * factor, latency_ns=latency)
    return longer.with_host(call_ns=own_ns)


@cached_per_run
def is_h2d_copy(graph: Graph) -> Mask:
    """Mask of H2D copies."""
    return graph.run.event_rows.matching(lambda word: copy_direction(word) == "HtoD")[graph.device.event]


def batch_refusal(graph: Graph, value: Value) -> str | None:
    """Return why another batch size cannot be predicted."""
    if not isinstance(value, str) and _batch_size(graph) is None:
        return "its batch size was not recorded, or there were several; use batch=x2 to double it"
    times = batch_factor(graph, value)
    if not 1 / MAX_FACTOR <= times <= MAX_FACTOR:
        return f"{number(times)} times the batch is too far from the recorded one"
    if graph.steps.detected_by == "whole run" and not graph.on_gpu and not graph.run.loaders:
        return "no steps were detected, so the batch is unknown"
    return None


def _parse(typed: str) -> Value:
    times = re.fullmatch(r"[xX*]?(\d+(?:\.\d+)?)[xX]?", typed)
    if times is None or float(times[1]) <= 0:
        raise ValueError("a batch is a number of samples, or a factor such as x2")
    if typed.isdigit():
        return int(typed)
    return f"x{float(times[1]):g}"


BATCH_REWRITES = (
    Rewrite(
        name="batch",
        removes_waits=False,
        edit=batch,
        best_case=batch_best_case,
        grade="C",
        about="another batch size",
        bound_label="perfect scaling with batch size",
        refusal_reason=batch_refusal,
        value_help="a number of samples, or a factor such as x2",
        default="x2",
        parse=_parse,
        cost="memory grows with the batch, and the learning rate must be adapted",
        work_factor=batch_factor,
    ),
)
