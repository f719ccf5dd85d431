"""Gradient accumulation: optimizer step and gradient communication only in every N-th step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.kernels.optimizers import mask_inside
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints, Spans
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.rewrites.engine.every_nth_step import delay_steps, spread_over_steps
from gpulab.replay.rewrites.ranks.collectives import gradient_collectives
from gpulab.replay.sweep import device_step_ns, host_step_ns
from gpulab.tables import EventKind

UPDATES = ("Optimizer.step#", "Optimizer.zero_grad#")
# Adding to gradients moves 12 bytes per parameter, as much as plain SGD. A fused Adam moves 28,
# an unfused one 80 to 120; a CPU makes the most passes. As shares of the optimizer's own time:
ADDING_TO_SGD, ADDING, ADDING_ON_CPU = (0.3, 1.0), (0.08, 0.45), (0.05, 0.25)
ADDING_NS = (4_000.0, 12_000.0)  # host time per tensor: one more operator and its launch
MAX_BATCHES = 10_000
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, eq=False)
class UpdateWork:
    """All work that happens once per update: host nodes, device ops, and spans of the host."""

    nodes: Ints
    ops: Ints
    spans: Spans
    optimizer_ops: Ints  # the part of `work` that belongs to the optimizer


@cached_per_run
def update_work(graph: Graph) -> UpdateWork:
    """Return the optimizer steps, and the collectives that average gradients."""
    run, host, device = graph.run, graph.host, graph.device
    is_optimizer = run.event_rows.matching(lambda word: word.startswith(UPDATES))
    optimizer_ranges = run.event_rows.select(
        np.flatnonzero(is_optimizer & run.event_rows.is_kind(EventKind.ANNOTATION))
    )
    is_inside: Mask = (
        mask_inside(run.event_rows, host.event, optimizer_ranges)
        if len(optimizer_ranges)
        else np.zeros(len(host), bool)
    )
    node_inside = np.append(is_inside, False)
    of_optimizer = np.flatnonzero(node_inside[device.call])
    gradients = gradient_collectives(graph)
    stops = np.union1d(np.flatnonzero(is_inside), gradients.call)
    return UpdateWork(stops, np.union1d(of_optimizer, gradients.ops), optimizer_ranges.spans(), of_optimizer)


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
    mean_step = spread_over_steps(graph, without, float(value), "updates")
    if float(value) <= 1:
        return mean_step
    added_frac = 1 - 1 / float(value)
    share = draw.ratio("adding", *_adding_range(graph))
    if not graph.on_gpu:
        return delay_steps(mean_step, added_frac * share * _host_ns(graph))
    host_ns = added_frac * _tensors(graph) * draw.between("adding calls", *ADDING_NS)
    return delay_steps(mean_step, host_ns, device_ns=added_frac * share * _optimizer_ns(graph))


@cached_per_run
def _adding_range(graph: Graph) -> tuple[float, float]:
    """Return the cost of adding gradients relative to the optimizer's time: minimum and maximum."""
    names = graph.run.event_rows.text("name").vocabulary
    if any(word.startswith("Optimizer.step#SGD") for word in names):
        return ADDING_TO_SGD
    return ADDING if graph.on_gpu else ADDING_ON_CPU


@cached_per_run
def _tensors(graph: Graph) -> int:
    """Return the number of gradients per step: from the optimizers if recorded, otherwise counted in backward."""
    count = sum(each.tensors or 0 for each in graph.run.optimizers)
    if count:
        return count
    events = graph.run.event_rows
    is_gradient = events.matching(lambda word: word == ACCUMULATE_GRAD) & events.is_kind(EventKind.OP)
    return round(int(is_gradient.sum()) / max(1, int(graph.steps.host_steps.recorded.sum())))


def without_updates(graph: Graph) -> Graph:
    """Return the graph whose steps neither update parameters nor communicate."""
    update = update_work(graph)
    cheaper = graph.without_calls(update.nodes).without_work(update.ops)
    if not len(update.spans.start_ns):
        return cheaper
    return cheaper.scaled_before({part: 1 - share for part, share in _optimizer_shares(graph).items()})


def with_updates_in(graph: Graph, is_updating: Mask, draw: Draw) -> Graph:
    """Return the graph where only some interior steps (a mask) update parameters; the others add to gradients."""
    update = update_work(graph)
    step_of_node = graph.step_of
    skips = np.append(~is_updating, False)[step_of_node] & (step_of_node >= 0)
    nodes = update.nodes[skips[update.nodes]]
    ops = update.ops[skips[graph.device.call[update.ops]]]
    cheaper = graph.without_calls(nodes).without_work(ops)
    saved_frac = skips * (1 - draw.ratio("adding", *_adding_range(graph)))
    shares = _optimizer_shares(graph) if len(update.spans.start_ns) else {}
    return cheaper.scaled_before({part: 1 - saved_frac * share for part, share in shares.items()})


@cached_per_run
def _optimizer_shares(graph: Graph) -> dict[str, Floats]:
    """Share of the host work before each node that belongs to the optimizer."""
    return graph.share_inside(update_work(graph).spans)


def _optimizer_ns(graph: Graph) -> float:
    """Return the device time of the optimizer in a typical step."""
    return device_step_ns(graph, update_work(graph).optimizer_ops)


def _host_ns(graph: Graph) -> float:
    """Return the host time of the optimizer in a typical step."""
    shares = _optimizer_shares(graph)
    per_stop = sum((graph.host.before_ns[part] * share for part, share in shares.items()), np.zeros(len(graph.host)))
    return host_step_ns(graph, per_stop)


def parse_batch_count(text: str) -> Value:
    """Parse a number of batches."""
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number of batches") from None
    if not 1 <= count <= MAX_BATCHES:
        raise ValueError(f"{count} is not between 1 and {MAX_BATCHES:,} batches")
    return count


def _refusal(graph: Graph, value: Value) -> str | None:
    if graph.steps.detected_by == "whole run":
        return "no steps were detected, so there is no N-th step"
    update = update_work(graph)
    if not len(update.spans.start_ns) and not len(update.ops):
        return "the run contains no optimizer step and no gradient all-reduce"
    return None


def _code(graph: Graph, value: Value) -> str:
    return (
        f"(loss / {value}).backward()  # with DDP: inside model.no_sync(), except in every {value}th step\n"
        f"if (step + 1) % {value} == 0:\n    optimizer.step()\n    optimizer.zero_grad()"
    )


ACCUMULATION_REWRITES = (
    Rewrite(
        name="accumulate",
        removes_waits=False,
        edit=accumulate,
        best_case=lambda graph, value: without_updates(graph),
        grade="B",
        about="gradients of N batches accumulated before an update",
        bound_label="no optimizer updates",
        refusal_reason=_refusal,
        value_help="a number of batches",
        default=4,
        parse=parse_batch_count,
        cost="the effective batch is N times as large: the learning rate must be adapted",
        code=_code,
    ),
)
