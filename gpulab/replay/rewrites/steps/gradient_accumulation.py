"""Gradient accumulation: the optimizer, and what ranks exchange for it, in every N-th step only."""

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
# Adding to gradients moves 12 bytes a parameter: as much as plain SGD. Of Adam and its like it is less, in one fused
# pass 28, in several 80 to 120; the most passes are made on a CPU. As shares of the optimizer's own time:
ADDING_TO_SGD, ADDING, ADDING_ON_CPU = (0.3, 1.0), (0.08, 0.45), (0.05, 0.25)
ADDING_NS = (4_000.0, 12_000.0)  # of the host, for each tensor: one more operator and its launch
MOST = 10_000
GIVEN = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, eq=False)
class Update:
    """Everything that is done once an update: stops, device work, and spans of the host."""

    stops: Ints
    work: Ints
    spans: Spans
    of_optimizer: Ints  # of the work, that of the optimizer


@once
def updates(graph: Graph) -> Update:
    """The optimizer's steps, and the collectives that make gradients equal."""
    run, host, device = graph.run, graph.host, graph.device
    named = run.event_rows.matching(lambda word: word.startswith(UPDATES))
    around = run.event_rows.where(np.flatnonzero(named & (run.event_rows["kind"] == Kind.ANNOTATION)))
    inside: Mask = within(run.event_rows, host.event, around) if len(around) else np.zeros(len(host), bool)
    called = np.append(inside, False)
    of_optimizer = np.flatnonzero(called[device.call])
    shared = exchanges(graph)
    stops = np.union1d(np.flatnonzero(inside), shared.call)
    return Update(stops, np.union1d(of_optimizer, shared.work), around.spans(), of_optimizer)


def accumulate(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Gradients of N batches are added up; the optimizer runs, and ranks exchange gradients, in every N-th step only.

    Models: a step is one batch, as it is now, and its time the mean over N: N - 1 of them without the optimizer and
    without communication (`no_sync()` with DistributedDataParallel), one with both. What those cost is what the replay
    says a step loses by them now. In return gradients are added to what is there: 12 bytes a parameter, as much as
    plain SGD moves (0.3 to 1 of its time), and less than Adam and its like do (0.08 to 0.45 of their time on a GPU,
    0.05 to 0.25 on a CPU, where they go over memory most often), and one operator more for each tensor.

    Cannot know: what it does to training: it is a batch N times as large, with fewer updates for as many samples.
    """
    left = without_updates(graph)
    shared = every(graph, left, float(value), "updates")
    if float(value) <= 1:
        return shared
    adds = 1 - 1 / float(value)
    share = draw.ratio("adding", *_adding(graph))
    if not graph.on_gpu:
        return held_up(shared, adds * share * _host_ns(graph))
    host_ns = adds * _tensors(graph) * draw.between("adding calls", *ADDING_NS)
    return held_up(shared, host_ns, device_ns=adds * share * _optimizer_ns(graph))


@once
def _adding(graph: Graph) -> tuple[float, float]:
    """What adding gradients up takes of the time of the optimizer: the least and the most."""
    words = graph.run.event_rows.words("name").vocabulary
    if any(word.startswith("Optimizer.step#SGD") for word in words):
        return ADDING_TO_SGD
    return ADDING if graph.on_gpu else ADDING_ON_CPU


@once
def _tensors(graph: Graph) -> int:
    """How many gradients a step gives: as the optimizers tell it, else as often as backward gave one."""
    told = sum(each.tensors or 0 for each in graph.run.optimizers)
    if told:
        return told
    events = graph.run.event_rows
    given = events.matching(lambda word: word == GIVEN) & (events["kind"] == Kind.OP)
    return round(int(given.sum()) / max(1, int(graph.steps.by_host.recorded.sum())))


def without_updates(graph: Graph) -> Graph:
    """The graph whose steps update nothing and exchange nothing."""
    found = updates(graph)
    left = graph.without_calls(found.stops).without_work(found.work)
    if not len(found.spans.start_ns):
        return left
    return left.scaled_before({part: 1 - share for part, share in _held(graph).items()})


@once
def _held(graph: Graph) -> dict[str, Floats]:
    """The share of the host's work before each stop that is the optimizer's."""
    return graph.within(updates(graph).spans)


def _optimizer_ns(graph: Graph) -> float:
    """Device time of the optimizer in a typical step."""
    return device_step_ns(graph, updates(graph).of_optimizer)


def _host_ns(graph: Graph) -> float:
    """Host time of the optimizer in a typical step."""
    held = _held(graph)
    per_stop = sum((graph.host.before_ns[part] * share for part, share in held.items()), np.zeros(len(graph.host)))
    return host_step_ns(graph, per_stop)


def batches_count(text: str) -> Value:
    """A number of batches, as somebody types it."""
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number of batches") from None
    if not 1 <= count <= MOST:
        raise ValueError(f"gradients of {count} batches cannot be added up")
    return count


def _lacking(graph: Graph, value: Value) -> str | None:
    if graph.steps.found_by == "whole run":
        return "no steps were found in it, so there is no N-th one"
    found = updates(graph)
    if not len(found.spans.start_ns) and not len(found.work):
        return "it holds no optimizer step and no exchange of gradients"
    return None


def _code(graph: Graph, value: Value) -> str:
    return (
        f"(loss / {value}).backward()  # with DistributedDataParallel inside model.no_sync() but for every {value}th\n"
        f"if (step + 1) % {value} == 0:\n    optimizer.step()\n    optimizer.zero_grad()"
    )


ACCUMULATING = (
    Rewrite(
        name="accumulate",
        calms=False,
        edit=accumulate,
        ceiling=lambda graph, value: without_updates(graph),
        grade="B",
        about="gradients of N batches added up before an update",
        ceiling_means="even no update at all",
        lacking=_lacking,
        takes="a number of batches",
        usual=4,
        parse=batches_count,
        price="a batch N times as large for the optimizer: the learning rate must fit",
        code=_code,
    ),
)
