"""Communication between ranks: overlapped with backward, in fewer and larger buckets, or without stragglers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.collectives import SYNCHRONISING_KINDS
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.rewrites.ranks.collectives import GraphCollectives, collectives_by_size, gradient_collectives
from gpulab.tables import EventKind
from gpulab.wording import size

MIB = 1 << 20
LATENCY_NS = (10_000.0, 40_000.0)  # of a tiny all-reduce within one machine
BACKWARD_LEFT = (0.9, 0.6)  # share of backward that remains when the first bucket is full
SLOWDOWN = (0.0, 0.15)  # slowdown of kernels during communication, as a share of the hidden time
MIN_COLLECTIVES = 5  # minimum number of collectives of one kind and size for a usual duration
MIN_EXPOSED_FRAC = 0.05  # if a smaller share is exposed, there is nothing to hide
UNDELAYED_PERCENTILE = (0.0, 20.0)  # percentile of equal collectives that did not wait for another rank
AUTOGRAD = "autograd::engine::evaluate_function"


def no_straggler(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Every rank reaches every collective on time.

    Models: among collectives of one kind and size, the shortest did not wait for another rank. Time above the 10th
    percentile (0 to 20) is waiting for the slowest rank, not communication, and is removed. Kinds and sizes with fewer
    than five collectives do not change.

    Cannot know: from one rank, whether all of them waited; then the gain is larger. Runs of all ranks show it exactly
    (`diagnose` of all runs).
    """
    percentile = draw.between("waited for nobody", *UNDELAYED_PERCENTILE)
    return _cap_durations(graph, lambda recorded_ns: float(np.percentile(recorded_ns, percentile)))


def no_straggler_best_case(graph: Graph, value: Value) -> Graph:
    """Synchronising collectives take no time: even the shortest recorded one may have waited."""
    return _cap_durations(graph, lambda recorded_ns: 0.0)


def _cap_durations(graph: Graph, usual_ns: Callable[[Floats], float]) -> Graph:
    """Cap each collective at the usual duration of its kind and size, if there are enough of them."""
    synchronising, groups = collectives_by_size(graph)
    dur = graph.device.dur_ns.copy()
    for group in groups:
        if len(group) >= MIN_COLLECTIVES:
            recorded = synchronising.recorded_ns[group]
            dur[synchronising.ops[group]] *= np.minimum(1.0, usual_ns(recorded) / np.maximum(recorded, 1.0))
    return graph.with_device(dur_ns=dur)


def overlap(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Gradients are all-reduced on a separate stream during backward, as DistributedDataParallel does.

    Models: each bucket is sent as soon as its gradients are ready. The exposed rest is at least the last bucket, and
    the time beyond the 60 to 90 % of backward kernels that run after the first bucket is full. Kernels slow down by 0
    to 15 % of the hidden time, because communication uses the same multiprocessors and memory. The exposed time never
    exceeds the present one.

    Cannot know: how the model's gradients are split into buckets.
    """
    gradients = gradient_collectives(graph)
    dur = _without_gradient_time(graph, gradients)
    for step in _steps(graph, gradients):
        durations = graph.device.dur_ns[gradients.ops[step]]
        total, tail = float(durations.sum()), float(durations[-1])
        hideable_ns = draw.between("backward left", *BACKWARD_LEFT) * backward_ns(
            graph, int(graph.step_of[gradients.call[step[-1]]])
        )
        exposed_ns = max(tail, total - hideable_ns)
        exposed_ns += draw.between("slowed by communication", *SLOWDOWN) * (total - exposed_ns)
        present_ns = float(
            (durations * gradients.exposed_ns[step] / np.maximum(gradients.recorded_ns[step], 1.0)).sum()
        )
        dur[gradients.ops[step[-1]]] = min(exposed_ns, present_ns)
    return graph.with_device(dur_ns=dur)


def _without_gradient_time(graph: Graph, gradients: GraphCollectives) -> Floats:
    """Return the durations of all device work, with these collectives of interior steps in no time."""
    dur = graph.device.dur_ns.copy()
    dur[gradients.ops[graph.step_of[gradients.call] >= 0]] = 0.0
    return dur


def without_gradient_communication(graph: Graph, value: Value) -> Graph:
    """Return the graph where gradient communication takes no time."""
    return graph.with_device(dur_ns=_without_gradient_time(graph, gradient_collectives(graph)))


def _steps(graph: Graph, gradients: GraphCollectives) -> list[Ints]:
    """Return the collectives of each step."""
    step = graph.step_of[gradients.call]
    return [np.flatnonzero(step == each) for each in np.unique(step[step >= 0]).tolist()]


@cached_per_run
def _backward_kernels(graph: Graph) -> Ints:
    """Kernels launched by backward; if its ranges were not recorded, those launched outside the main thread."""
    events, device = graph.run.event_rows, graph.device
    is_autograd = events.matching(lambda word: AUTOGRAD in word)
    ranges = events.select(np.flatnonzero(is_autograd & (events["kind"] <= EventKind.ANNOTATION.value)))
    launch_event = graph.host.event[np.maximum(device.call, 0)]
    kernels = (events["kind"][device.event] == EventKind.KERNEL.value) & (device.call >= 0) & (launch_event >= 0)
    if not len(ranges):
        return np.flatnonzero(kernels & (events["thread"][launch_event] != graph.run.main_thread))
    spans = ranges.spans()
    launched_at = events["start_ns"][launch_event]
    span = np.searchsorted(spans.start_ns, launched_at, side="right") - 1
    return np.flatnonzero(kernels & (span >= 0) & (launched_at < spans.end_ns[np.maximum(span, 0)]))


def backward_ns(graph: Graph, step: int) -> float:
    """Return the device time of backward kernels in a step."""
    work = _backward_kernels(graph)
    of_step = work[graph.step_of[graph.device.call[work]] == step]
    return float(graph.device.dur_ns[of_step].sum())


@dataclass(frozen=True, eq=False)
class MergedBuckets:
    """All-reduces merged into buckets: the last one of each bucket carries all of its data."""

    ops: Ints
    bucket: Ints  # the bucket of each
    last: Ints  # for each bucket, the index of its last all-reduce in `work`


def merge_into_buckets(graph: Graph, max_bytes: float) -> MergedBuckets:
    """Fill buckets of at most this size with consecutive all-reduces of one step."""
    gradients = gradient_collectives(graph)
    bucket: list[int] = []
    last: list[int] = []
    work: list[int] = []
    number = -1
    for step in _steps(graph, gradients):
        bucket_bytes = np.inf
        for index in step.tolist():
            bytes_moved = float(gradients.bytes[index])
            if bucket_bytes + bytes_moved > max_bytes:
                number, bucket_bytes = number + 1, 0.0
                last.append(0)
            bucket_bytes += bytes_moved
            last[number] = len(work)
            work.append(int(gradients.ops[index]))
            bucket.append(number)
    return MergedBuckets(np.array(work, np.int64), np.array(bucket, np.int64), np.array(last, np.int64))


def bucket_mb(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Gradients are all-reduced in buckets of N MiB, so that there are fewer and larger collectives.

    Models: a collective takes a latency, 10 to 40 us within one machine, plus the time its data need. Those in one
    bucket pay the latency once and start when the last of them would; their other launches disappear. Their data take
    as long as now. Larger buckets start later and overlap less, which the replay models. Only buckets larger than the
    present ones can be predicted.

    Cannot know: time spent waiting for another rank (see `no_straggler`).
    """
    latency = draw.ratio("latency of a collective", *LATENCY_NS)
    return _merge(graph, merge_into_buckets(graph, float(value) * MIB), latency)


def _merge(graph: Graph, buckets: MergedBuckets, latency_ns: float) -> Graph:
    dur_ns, call_ns = graph.device.dur_ns.copy(), graph.host.call_ns.copy()
    is_alone = np.bincount(buckets.bucket, minlength=len(buckets.last))[buckets.bucket] == 1
    data_ns = np.maximum(dur_ns[buckets.ops] - latency_ns, 0.0)
    bucket_data_ns = np.bincount(buckets.bucket, weights=data_ns, minlength=len(buckets.last))
    shortest = np.full(len(buckets.last), np.inf)
    np.minimum.at(shortest, buckets.bucket, dur_ns[buckets.ops])
    last_ns = dur_ns[buckets.ops[buckets.last]]
    bucket_ns = np.where(is_alone[buckets.last], last_ns, bucket_data_ns + np.minimum(latency_ns, shortest))
    dur_ns[buckets.ops] = 0.0
    dur_ns[buckets.ops[buckets.last]] = bucket_ns
    call_ns[graph.device.call[np.setdiff1d(buckets.ops, buckets.ops[buckets.last])]] = 0.0
    return graph.with_device(dur_ns=dur_ns).with_host(call_ns=call_ns)


def _free_buckets(graph: Graph, value: Value) -> Graph:
    """Launches merged, and communication in no time: no bucket size can do better."""
    buckets = merge_into_buckets(graph, float(value) * MIB)
    call_ns = graph.host.call_ns.copy()
    call_ns[graph.device.call[np.setdiff1d(buckets.ops, buckets.ops[buckets.last])]] = 0.0
    return without_gradient_communication(graph, value).with_host(call_ns=call_ns)


def parse_mib(text: str) -> Value:
    """Parse a size in MiB."""
    try:
        size = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of MiB") from None
    if not 0 < size <= 100_000:
        raise ValueError(f"a bucket cannot hold {text} MiB")
    return int(size) if size == int(size) else size


def _refusal(graph: Graph, value: Value) -> str | None:
    gradients = gradient_collectives(graph)
    if not (graph.step_of[gradients.call] >= 0).any():
        return "its steps do not all-reduce gradients between ranks"
    return None


def overlap_refusal_reason(graph: Graph, value: Value) -> str | None:
    """Return why overlap cannot be predicted; None if it can."""
    reason = _refusal(graph, value)
    if reason is not None:
        return reason
    gradients = gradient_collectives(graph)
    gradients = gradients.select(graph.step_of[gradients.call] >= 0)
    if gradients.exposed_ns.sum() < MIN_EXPOSED_FRAC * gradients.recorded_ns.sum():
        return "communication is hidden behind kernels already"
    if not len(_backward_kernels(graph)):
        return "the kernels of the backward pass cannot be identified"
    return None


def _bucket_refusal(graph: Graph, value: Value) -> str | None:
    if not graph.on_gpu:
        return "on a CPU, the latency of a collective is unknown; it is often most of its time"
    reason = _refusal(graph, value)
    if reason is not None:
        return reason
    gradients = gradient_collectives(graph)
    gradients = gradients.select(graph.step_of[gradients.call] >= 0)
    if (gradients.bytes < 0).any():
        return "the sizes of its collectives were not recorded"
    buckets = merge_into_buckets(graph, float(value) * MIB)
    if len(buckets.last) == len(buckets.ops):
        largest = size(float(gradients.bytes.max()))
        return f"no two of its collectives (up to {largest}) fit into one bucket; choose a larger size"
    return None


def _straggler_refusal(graph: Graph, value: Value) -> str | None:
    synchronising, groups = collectives_by_size(graph)
    if not len(synchronising) or not (graph.step_of[synchronising.call] >= 0).any():
        return f"its steps contain no collective that synchronises all ranks ({', '.join(SYNCHRONISING_KINDS)})"
    if max(map(len, groups)) < MIN_COLLECTIVES:
        return f"no kind and size of collective occurs {MIN_COLLECTIVES} times, so the usual duration is unknown"
    return None


COMMUNICATION_REWRITES = (
    Rewrite(
        name="bucket_mb",
        edit=bucket_mb,
        best_case=_free_buckets,
        grade="B",
        about="gradients all-reduced in buckets of N MiB",
        bound_label="communication at no cost",
        refusal_reason=_bucket_refusal,
        value_help="a size in MiB",
        default=None,
        parse=parse_mib,
        cost="GPU memory for the buckets",
        code=lambda graph, value: f"model = DistributedDataParallel(model, bucket_cap_mb={value})",
    ),
    Rewrite(
        name="overlap",
        edit=overlap,
        best_case=without_gradient_communication,
        grade="B",
        about="gradients all-reduced during backward",
        bound_label="communication at no cost",
        refusal_reason=overlap_refusal_reason,
        cost="kernels slow down a little during communication",
        code=lambda graph, value: "model = DistributedDataParallel(model)  # all-reduces each bucket when it is full",
    ),
    Rewrite(
        name="no_straggler",
        edit=no_straggler,
        best_case=no_straggler_best_case,
        grade="B",
        about="every rank reaches collectives on time",
        bound_label="collectives at no cost",
        refusal_reason=_straggler_refusal,
    ),
)
