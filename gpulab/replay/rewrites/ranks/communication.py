"""What ranks exchange: hidden behind backward, in fewer and larger pieces, or without waiting for the last of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.collectives import TOGETHER
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.ranks.collectives import Exchanges, alike, exchanges
from gpulab.tables import Kind
from gpulab.wording import size

MIB = 1 << 20
LATENCY_NS = (10_000.0, 40_000.0)  # of an all-reduce of next to nothing, within one machine
USABLE = (0.9, 0.6)  # share of backward that is left once the first gradients are there
SLOWED = (0.0, 0.15)  # by how much of the hidden time kernels are slower beside communication
ENOUGH = 5  # collectives of one kind and size, from which a usual time is told
HIDDEN_FRAC = 0.05  # with less of it exposed there is nothing to hide
WAITING = (0.0, 20.0)  # the percentile of equal collectives that waited for nobody
AUTOGRAD = "autograd::engine::evaluate_function"


def no_straggler(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Every rank arrives at every collective in time.

    Models: of collectives of one kind and size the shortest waited for nobody: what the others last longer than the
    10 % point (0 to 20 %) was waiting for whoever came last, not the network's doing, and goes. Kinds and sizes with
    fewer than five collectives stay.

    Cannot know: from one rank, whether all of them waited; then there is more to gain. The ranks recorded together
    tell it exactly (`diagnose` of all runs).
    """
    percentile = draw.between("waited for nobody", *WAITING)
    return _at_most(graph, lambda recorded_ns: float(np.percentile(recorded_ns, percentile)))


def no_straggler_ceiling(graph: Graph, value: Value) -> Graph:
    """Collectives that all must reach take no time: the shortest one seen may have waited as well."""
    return _at_most(graph, lambda recorded_ns: 0.0)


def _at_most(graph: Graph, usual_ns: Callable[[Floats], float]) -> Graph:
    """Each collective no longer than is usual for its kind and size, where enough of these were seen to tell."""
    found, groups = alike(graph)
    dur = graph.device.dur_ns.copy()
    for group in groups:
        if len(group) >= ENOUGH:
            recorded = found.recorded_ns[group]
            dur[found.work[group]] *= np.minimum(1.0, usual_ns(recorded) / np.maximum(recorded, 1.0))
    return graph.with_device(dur_ns=dur)


def overlap(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Gradients are exchanged on a stream of their own while backward goes on, as DistributedDataParallel does it.

    Models: each bucket is sent as soon as its gradients are there. What backward cannot hide is left: at least the
    last bucket, and what all take longer than the 60 to 90 % of backward's kernels that run once the first bucket is
    full. Kernels beside communication are slower by 0 to 15 % of the hidden time, as both use the same multiprocessors
    and memory. Never more is left than is exposed now.

    Cannot know: how the model's gradients fall into buckets.
    """
    told = exchanges(graph)
    dur = _stripped(graph, told)
    for step in _steps(graph, told):
        mine = graph.device.dur_ns[told.work[step]]
        total, tail = float(mine.sum()), float(mine[-1])
        room = draw.between("backward left", *USABLE) * _backward_ns(graph, int(graph.step_of[told.call[step[-1]]]))
        left = max(tail, total - room)
        left += draw.between("slowed by communication", *SLOWED) * (total - left)
        exposed = float((mine * told.exposed_ns[step] / np.maximum(told.recorded_ns[step], 1.0)).sum())
        dur[told.work[step[-1]]] = min(left, exposed)
    return graph.with_device(dur_ns=dur)


def _stripped(graph: Graph, told: Exchanges) -> Floats:
    """How long all device work takes, with these collectives of the steps that count in no time."""
    dur = graph.device.dur_ns.copy()
    dur[told.work[graph.step_of[told.call] >= 0]] = 0.0
    return dur


def hidden(graph: Graph, value: Value) -> Graph:
    """Communication that takes no time."""
    return graph.with_device(dur_ns=_stripped(graph, exchanges(graph)))


def _steps(graph: Graph, told: Exchanges) -> list[Ints]:
    """Which of the collectives each step calls for."""
    step = graph.step_of[told.call]
    return [np.flatnonzero(step == each) for each in np.unique(step[step >= 0]).tolist()]


@once
def _of_backward(graph: Graph) -> Ints:
    """Kernels that backward called for; without its ranges in the trace, all that another thread than the main did."""
    events, device = graph.run.event_rows, graph.device
    named = events.matching(lambda word: AUTOGRAD in word)
    ranges = events.where(np.flatnonzero(named & (events["kind"] <= Kind.ANNOTATION)))
    called = graph.host.event[np.maximum(device.call, 0)]
    kernels = (events["kind"][device.event] == Kind.KERNEL) & (device.call >= 0) & (called >= 0)
    if not len(ranges):
        return np.flatnonzero(kernels & (events["thread"][called] != graph.run.main_thread))
    spans = ranges.spans()
    at = events["start_ns"][called]
    place = np.searchsorted(spans.start_ns, at, side="right") - 1
    return np.flatnonzero(kernels & (place >= 0) & (at < spans.end_ns[np.maximum(place, 0)]))


def _backward_ns(graph: Graph, step: int) -> float:
    """Device time of backward's kernels in a step."""
    work = _of_backward(graph)
    mine = work[graph.step_of[graph.device.call[work]] == step]
    return float(graph.device.dur_ns[mine].sum())


@dataclass(frozen=True, eq=False)
class Merging:
    """Which all-reduces become one: the last of each bucket carries all."""

    work: Ints
    bucket: Ints  # for each, a number
    last: Ints  # for each bucket, which of `work` is its last


def merging(graph: Graph, most_bytes: float) -> Merging:
    """Neighbours of one step fill a bucket until it holds so much."""
    told = exchanges(graph)
    bucket: list[int] = []
    last: list[int] = []
    work: list[int] = []
    number = -1
    for step in _steps(graph, told):
        held = np.inf
        for each in step.tolist():
            size = float(told.bytes[each])
            if held + size > most_bytes:
                number, held = number + 1, 0.0
                last.append(0)
            held += size
            last[number] = len(work)
            work.append(int(told.work[each]))
            bucket.append(number)
    return Merging(np.array(work, np.int64), np.array(bucket, np.int64), np.array(last, np.int64))


def bucket_mb(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Gradients are exchanged in buckets of N MiB, so that there are fewer and larger collectives.

    Models: a collective takes a latency, 10 to 40 us within one machine, and the time its data need. Those that fall
    into one bucket pay the latency once, and go when the last of them would; their other launches are not made. Their
    data take as long as now. Larger buckets begin later, which the replay sees, and hide less. Only larger buckets
    than now can be told.

    Cannot know: what waited for another rank (`no_straggler` tells).
    """
    latency = draw.ratio("latency of a collective", *LATENCY_NS)
    return _merged(graph, merging(graph, float(value) * MIB), latency)


def _merged(graph: Graph, found: Merging, latency_ns: float) -> Graph:
    dur, own = graph.device.dur_ns.copy(), graph.host.own_ns.copy()
    alone = np.bincount(found.bucket, minlength=len(found.last))[found.bucket] == 1
    moving = np.maximum(dur[found.work] - latency_ns, 0.0)
    together = np.bincount(found.bucket, weights=moving, minlength=len(found.last))
    shortest = np.full(len(found.last), np.inf)
    np.minimum.at(shortest, found.bucket, dur[found.work])
    single = dur[found.work[found.last]]
    whole = np.where(alone[found.last], single, together + np.minimum(latency_ns, shortest))
    dur[found.work] = 0.0
    dur[found.work[found.last]] = whole
    own[graph.device.call[np.setdiff1d(found.work, found.work[found.last])]] = 0.0
    return graph.with_device(dur_ns=dur).with_host(own_ns=own)


def _free_buckets(graph: Graph, value: Value) -> Graph:
    """Launches merged, and what is left takes no time: no size of bucket can beat that."""
    found = merging(graph, float(value) * MIB)
    own = graph.host.own_ns.copy()
    own[graph.device.call[np.setdiff1d(found.work, found.work[found.last])]] = 0.0
    return hidden(graph, value).with_host(own_ns=own)


def megabytes(text: str) -> Value:
    """A size in MiB, as somebody types it."""
    try:
        size = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number of MiB") from None
    if not 0 < size <= 100_000:
        raise ValueError(f"a bucket cannot hold {text} MiB")
    return int(size) if size == int(size) else size


def _lacking(graph: Graph, value: Value) -> str | None:
    told = exchanges(graph)
    if not (graph.step_of[told.call] >= 0).any():
        return "its steps exchange no gradients between ranks"
    return None


def _lacking_overlap(graph: Graph, value: Value) -> str | None:
    why = _lacking(graph, value)
    if why is not None:
        return why
    told = exchanges(graph)
    told = told.where(graph.step_of[told.call] >= 0)
    if told.exposed_ns.sum() < HIDDEN_FRAC * told.recorded_ns.sum():
        return "what ranks exchange is hidden behind kernels already"
    if not len(_of_backward(graph)):
        return "which kernels are those of backward is not recorded"
    return None


def _lacking_sizes(graph: Graph, value: Value) -> str | None:
    why = _lacking(graph, value)
    if why is not None:
        return why
    told = exchanges(graph)
    told = told.where(graph.step_of[told.call] >= 0)
    if (told.bytes < 0).any():
        return "it does not tell how many bytes each collective moved"
    found = merging(graph, float(value) * MIB)
    if len(found.last) == len(found.work):
        largest = size(float(told.bytes.max()))
        return f"its collectives, of up to {largest}, do not fit two into one: only larger buckets can be told"
    return None


def _lacking_group(graph: Graph, value: Value) -> str | None:
    found, groups = alike(graph)
    if not len(found) or not (graph.step_of[found.call] >= 0).any():
        return f"its steps hold no collective that all ranks must reach ({', '.join(TOGETHER)})"
    if max(map(len, groups)) < ENOUGH:
        return f"no kind and size of collective comes {ENOUGH} times, so what is usual is not known"
    return None


COMMUNICATING = (
    Rewrite(
        name="bucket_mb",
        edit=bucket_mb,
        ceiling=_free_buckets,
        grade="B",
        about="gradients exchanged in buckets of N MiB",
        ceiling_means="even free communication",
        lacking=_lacking_sizes,
        takes="a size in MiB",
        usual=None,
        parse=megabytes,
        price="GPU memory for the buckets",
        code=lambda graph, value: f"model = DistributedDataParallel(model, bucket_cap_mb={value})",
    ),
    Rewrite(
        name="overlap",
        edit=overlap,
        ceiling=hidden,
        grade="B",
        about="gradients exchanged while backward goes on",
        ceiling_means="even free communication",
        lacking=_lacking_overlap,
        price="kernels beside communication are a little slower",
        code=lambda graph, value: "model = DistributedDataParallel(model)  # it sends each bucket when it is full",
    ),
    Rewrite(
        name="no_straggler",
        edit=no_straggler,
        ceiling=no_straggler_ceiling,
        grade="B",
        about="every rank arrives at collectives in time",
        ceiling_means="even collectives that take no time",
        lacking=_lacking_group,
    ),
)
