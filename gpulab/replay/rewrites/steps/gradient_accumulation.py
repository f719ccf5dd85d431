"""Gradient accumulation: optimizer step and gradient communication only in every N-th step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.kernels.optimizers import within
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints, Spans
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.engine.every_nth_step import every, held_up
from gpulab.replay.rewrites.ranks.collectives import exchanges
from gpulab.replay.sweep import device_step_ns, host_step_ns
from gpulab.tables import Kind

UPDATES = ("Optimizer.step#", "Optimizer.zero_grad#")
# Adding to gradients moves 12 bytes per parameter, as much as plain SGD. A fused Adam moves 28,
# an unfused one 80 to 120; a CPU makes the most passes. As shares of the optimizer's own time:
ADDING_TO_SGD, ADDING, ADDING_ON_CPU = (0.3, 1.0), (0.08, 0.45), (0.05, 0.25)
ADDING_NS = (4_000.0, 12_000.0)  # host time per tensor: one more operator and its launch
MAX_BATCHES = 10_000
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, eq=False)
class Update:
    """All work that happens once per update: host nodes, device ops, and spans of the host."""

    stops: Ints
    work: Ints
    spans: Spans
    of_optimizer: Ints  # the part of `work` that belongs to the optimizer


@once
def updates(graph: Graph) -> Update:
    """Return the optimizer steps, and the collectives that average gradients."""
    run, host, device = graph.run, graph.host, graph.device
    is_optimizer = run.event_rows.matching(lambda word: word.startswith(UPDATES))
    optimizer_ranges = run.event_rows.where(np.flatnonzero(is_optimizer & (run.event_rows["kind"] == Kind.ANNOTATION)))
    is_inside: Mask = (
        within(run.event_rows, host.event, optimizer_ranges) if len(optimizer_ranges) else np.zeros(len(host), bool)
    )
    node_inside = np.append(is_inside, False)
    of_optimizer = np.flatnonzero(node_inside[device.call])
    gradients = exchanges(graph)
    stops = np.union1d(np.flatnonzero(is_inside), gradients.call)
    return Update(stops, np.union1d(of_optimizer, gradients.work), optimizer_ranges.spans(), of_optimizer)


def accumulate(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Gradients of N batches are accumulated; the optimizer and gradient communication run only in every N-th step.

    Models: a step is still one batch, and its time the mean of N: N - 1 steps without the optimizer and without
    communication (`no_sync()` with DistributedDataParallel), and one with both. Their cost is the time a step loses by
    them in the replay now. In return, gradients are added to existing ones: 12 bytes per parameter, as much as plain
    SGD moves (0.3 to 1 of its time), and less than Adam does (0.08 to 0.45 of its time on a GPU, 0.05 to 0.25 on a CPU,
    which makes the most memory passes), and one more operator per tensor.

    Cannot know: the effect on training: the effective batch is N times as large, with fewer updates per sample.
    """
    without = without_updates(graph)
    mean_step = every(graph, without, float(value), "updates")
    if float(value) <= 1:
        return mean_step
    added_frac = 1 - 1 / float(value)
    share = draw.ratio("adding", *_adding_range(graph))
    if not graph.on_gpu:
        return held_up(mean_step, added_frac * share * _host_ns(graph))
    host_ns = added_frac * _tensors(graph) * draw.between("adding calls", *ADDING_NS)
    return held_up(mean_step, host_ns, device_ns=added_frac * share * _optimizer_ns(graph))


@once
def _adding_range(graph: Graph) -> tuple[float, float]:
    """Return the cost of adding gradients relative to the optimizer's time: minimum and maximum."""
    names = graph.run.event_rows.words("name").vocabulary
    if any(word.startswith("Optimizer.step#SGD") for word in names):
        return ADDING_TO_SGD
    return ADDING if graph.on_gpu else ADDING_ON_CPU


@once
def _tensors(graph: Graph) -> int:
    """Return the number of gradients per step: from the optimizers if recorded, otherwise counted in backward."""
    count = sum(each.tensors or 0 for each in graph.run.optimizers)
    if count:
        return count
    events = graph.run.event_rows
    is_gradient = events.matching(lambda word: word == ACCUMULATE_GRAD) & (events["kind"] == Kind.OP)
    return round(int(is_gradient.sum()) / max(1, int(graph.steps.by_host.recorded.sum())))


def without_updates(graph: Graph) -> Graph:
    """Return the graph whose steps neither update parameters nor communicate."""
    update = updates(graph)
    cheaper = graph.without_calls(update.stops).without_work(update.work)
    if not len(update.spans.start_ns):
        return cheaper
    return cheaper.scaled_before({part: 1 - share for part, share in _optimizer_shares(graph).items()})


@once
def _optimizer_shares(graph: Graph) -> dict[str, Floats]:
    """Share of the host work before each node that belongs to the optimizer."""
    return graph.within(updates(graph).spans)


def _optimizer_ns(graph: Graph) -> float:
    """Return the device time of the optimizer in a typical step."""
    return device_step_ns(graph, updates(graph).of_optimizer)


def _host_ns(graph: Graph) -> float:
    """Return the host time of the optimizer in a typical step."""
    shares = _optimizer_shares(graph)
    per_stop = sum((graph.host.before_ns[part] * share for part, share in shares.items()), np.zeros(len(graph.host)))
    return host_step_ns(graph, per_stop)


def batches_count(text: str) -> Value:
    """Parse a number of batches."""
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number of batches") from None
    if not 1 <= count <= MAX_BATCHES:
        raise ValueError(f"{count} is not between 1 and {MAX_BATCHES:,} batches")
    return count


def _refusal(graph: Graph, value: Value) -> str | None:
    if graph.steps.found_by == "whole run":
        return "no steps were detected, so there is no N-th step"
    update = updates(graph)
    if not len(update.spans.start_ns) and not len(update.work):
        return "the run contains no optimizer step and no gradient all-reduce"
    return None


def _code(graph: Graph, value: Value) -> str:
    return (
        f"(loss / {value}).backward()  # with DDP: inside model.no_sync(), except in every {value}th step\n"
        f"if (step + 1) % {value} == 0:\n    optimizer.step()\n    optimizer.zero_grad()"
    )


ACCUMULATING = (
    Rewrite(
        name="accumulate",
        calms=False,
        edit=accumulate,
        ceiling=lambda graph, value: without_updates(graph),
        grade="B",
        about="gradients of N batches accumulated before an update",
        ceiling_means="removing all updates",
        lacking=_refusal,
        takes="a number of batches",
        usual=4,
        parse=batches_count,
        price="the effective batch is N times as large: the learning rate must be adapted",
        code=_code,
    ),
)
