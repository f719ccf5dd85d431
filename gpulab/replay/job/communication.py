"""Changes of the communication of a job: without waits, with faster or rarer exchanges, on more ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, collectives
from gpulab.intervals import Ints
from gpulab.replay.job.job_graph import JobGraph
from gpulab.replay.job.joint_sweep import JobSchedule, joint_sweep
from gpulab.replay.job.scaling import later_last_arrival_ns, ring_transfer_ns, with_later_start
from gpulab.replay.rewrite import Draw, Value
from gpulab.replay.rewrites.ranks.collectives import GRADIENTS
from gpulab.replay.rewrites.ranks.communication import MIB
from gpulab.replay.rewrites.steps.gradient_accumulation import with_updates_in

LATENCY_GPU_NS = (10_000.0, 40_000.0)  # of one message between GPUs of one machine
LATENCY_CPU_NS = (50_000.0, 400_000.0)  # of gloo over the loopback device of a busy machine
COMPRESSED = (0.5, 0.8)  # of the time of the data: half the bytes, and converting them on both sides
MIN_LATE_FRAC = 0.02  # of a step: a smaller wait of the others is chance
MIN_SIZE_RATIO = 4  # of the largest to the smallest collective: with less, latency and bandwidth cannot be told apart


def latency_ns(job: JobGraph, draw: Draw) -> float:
    """Return the latency of a message: drawn, but at most the shortest recorded transfer.

    On a CPU it is the intercept of the transfer over the size, if the sizes differ enough.
    """
    fitted_ns = None if job.graphs[0].on_gpu else _fitted_latency_ns(job)
    if fitted_ns is not None:
        return min(fitted_ns * draw.ratio("latency of a message", 0.7, 1.4), float(job.joint.transfer_ns.min()))
    limits = LATENCY_GPU_NS if job.graphs[0].on_gpu else LATENCY_CPU_NS
    return min(draw.ratio("latency of a message", *limits), float(job.joint.transfer_ns.min(initial=limits[1])))


def _fitted_latency_ns(job: JobGraph) -> float | None:
    """Return the latency of a collective by a line through the median transfer of each size; None if they are alike."""
    joint = job.joint
    is_known = joint.bytes > 0
    sizes = np.unique(joint.bytes[is_known])
    if len(sizes) < 2 or sizes[-1] < MIN_SIZE_RATIO * sizes[0]:
        return None
    medians = [float(np.median(joint.transfer_ns[joint.bytes == size])) for size in sizes.tolist()]
    slope, intercept = np.polyfit(sizes.astype(float), medians, 1)
    return float(intercept) if slope > 0 and intercept > 0 else None


def latest_rank(schedule: JobSchedule) -> int | None:
    """Return the position of the rank that the others wait for most; None if they hardly wait."""
    last = np.nanargmax(schedule.arrival_ns, axis=1)
    lead_ns = np.nanmean(schedule.wait_ns, axis=1)
    waited = np.bincount(last, weights=lead_ns, minlength=len(schedule.job.graphs))
    steps = max(1, len(np.unique(schedule.job.joint.step)))
    return int(waited.argmax()) if waited.max() / steps >= MIN_LATE_FRAC * schedule.step_ns else None


def without_straggler(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """No rank waits for the slowest one any more: it arrives with the others at the latest.

    Models: the ranks are replayed together. A collective starts when the last of the other ranks has arrived. Without
    a value, the straggler is the rank that the others wait for most.

    Cannot know: what it costs to make that rank faster, and whether it then slows down others on the same machine.
    """
    index = latest_rank(joint_sweep(job)) if value is True else rank_index(job, value)
    return job if index is None else replace(job, excused=(*job.excused, index))


def rank_index(job: JobGraph, value: Value) -> int | None:
    """Return the position of the rank of this number; None if there is none. Ranks without a number count from 0."""
    numbers = [index if graph.run.rank is None else graph.run.rank for index, graph in enumerate(job.graphs)]
    return numbers.index(int(float(value))) if int(float(value)) in numbers else None


def balance(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """All ranks have the same amount of work in each step.

    Models: a collective starts at the mean arrival of its ranks, as the work that makes some late is spread over all.
    For stragglers that rotate, as with batches of unequal length.
    """
    return replace(job, arrival="mean")


def first_arrival(job: JobGraph, value: Value) -> JobGraph:
    """Return the job where every collective starts as soon as the first rank arrives: no rank waits for another."""
    return replace(job, arrival="first")


def bandwidth(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """The link between the ranks is N times as fast.

    Models: a transfer takes a latency (10 to 40 us between GPUs, 50 to 400 us with gloo) plus the time of its data,
    which becomes N times shorter. Waiting for other ranks is replayed.
    """
    return _scaled_data(job, 1 / float(value), draw, np.ones(len(job.joint), bool))


def compress(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """Gradients are sent in 16 bits (a communication hook of DistributedDataParallel).

    Models: the data of gradients takes 50 to 80 % of the time: half the bytes, and the conversion. The latency stays.
    """
    gradients = np.isin(job.joint.kind, [KINDS.index(kind) for kind in GRADIENTS])
    return _scaled_data(job, draw.between("conversion of gradients", *COMPRESSED), draw, gradients)


def _scaled_data(
    job: JobGraph, factor: float, draw: Draw, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> JobGraph:
    latency, transfer = latency_ns(job, draw), job.joint.transfer_ns
    data_ns = np.maximum(transfer - latency, 0.0)
    return job.with_joint(transfer_ns=np.where(mask, transfer - data_ns * (1 - factor), transfer))


def no_communication(job: JobGraph, value: Value) -> JobGraph:
    """Return the job whose transfers take no time; ranks still wait for each other."""
    return job.with_joint(transfer_ns=np.zeros(len(job.joint)))


def no_sync(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """Gradients are exchanged in one of N backward passes only: `model.no_sync()` and gradient accumulation.

    Models: N - 1 of N steps have neither collectives nor an optimizer step, and add to the gradients instead. Delays
    that rotate among the ranks average out.

    Cannot know: how the N times larger batch changes the training.
    """
    every = int(float(value))
    number = np.unique(job.joint.step, return_inverse=True)[1]
    is_synced = number % every == every - 1
    graphs = []
    for rank, graph in enumerate(job.graphs):
        ops = job.joint.op[is_synced, rank]
        steps = graph.step_of[graph.device.call[ops[ops >= 0]]]
        graphs.append(with_updates_in(graph, np.isin(np.arange(len(graph.step_start_node)), steps), draw))
    return replace(job, graphs=tuple(graphs), synced_every=every).without_collectives(~is_synced)


def larger_buckets(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """Gradients are all-reduced in buckets of N MiB, so that there are fewer and larger collectives.

    Models: consecutive all-reduces of a step are joined up to that size, pay the latency once, and start when the last
    of them would.
    """
    latency, joint = latency_ns(job, draw), job.joint
    group, last = _buckets(job, float(value) * MIB)
    data_ns = np.maximum(joint.transfer_ns - latency, 0.0)
    merged_ns = np.bincount(group, weights=data_ns, minlength=len(last)) + latency
    transfer_ns = np.where(np.bincount(group, minlength=len(last))[group] > 1, merged_ns[group], joint.transfer_ns)
    is_last = np.isin(np.arange(len(joint)), last)
    return job.with_joint(transfer_ns=transfer_ns).without_collectives(~is_last)


def _buckets(job: JobGraph, max_bytes: float) -> tuple[Ints, Ints]:
    """Return the bucket of each collective, and the last collective of each bucket; others than all-reduces stay."""
    joint, first_rank = job.joint, 0
    order = np.lexsort((joint.op[:, first_rank], joint.step))
    bucket, last, size, open_step = np.zeros(len(joint), np.int64), [], np.inf, None
    for index in order.tolist():
        joins = joint.kind[index] == KINDS.index("all-reduce")
        if not joins or open_step != joint.step[index] or size + joint.bytes[index] > max_bytes:
            last.append(index)
            size, open_step = 0.0, joint.step[index] if joins else None
        size += float(joint.bytes[index])
        last[-1] = index
        bucket[index] = len(last) - 1
    return bucket, np.array(last, np.int64)


def scaled_to_ranks(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """The job has N ranks, each with as much work as now.

    Models: transfers by the alpha-beta model of a ring, with a latency of 10 to 40 us (gloo: 50 to 400 us) and the
    recorded bandwidth; the last of N ranks arrives later than the last one now, as their arrivals vary.

    Cannot know: the network between machines, which is slower than links inside one, and hierarchical algorithms.
    """
    ranks = int(float(value))
    joint = job.joint
    transfer = ring_transfer_ns(
        joint.transfer_ns, joint.kind, joint.ranks, to_ranks=ranks, latency_ns=latency_ns(job, draw)
    )
    later_ns = draw.between("arrival of the last rank", *later_last_arrival_ns(joint_sweep(job), ranks))
    return with_later_start(job.with_joint(transfer_ns=transfer), later_ns)


def scaled_best_case(job: JobGraph, value: Value) -> JobGraph:
    """No rank arrives later, and messages have no latency."""
    joint = job.joint
    return job.with_joint(
        transfer_ns=ring_transfer_ns(
            joint.transfer_ns, joint.kind, joint.ranks, to_ranks=int(float(value)), latency_ns=0.0
        )
    )


def straggler_refusal_reason(job: JobGraph, value: Value) -> str | None:
    """Return why no_straggler cannot be predicted; None if it can."""
    if value is True:
        return None if latest_rank(joint_sweep(job)) is not None else "no rank keeps the others waiting"
    return f"there is no rank {value}" if rank_index(job, value) is None else None


def no_sync_refusal_reason(job: JobGraph, value: Value) -> str | None:
    """Return why no_sync cannot be predicted; None if it can."""
    steps = len(np.unique(job.joint.step))
    return None if steps >= float(value) else f"the ranks share the collectives of only {steps} steps"


def compress_refusal_reason(job: JobGraph, value: Value) -> str | None:
    """Return why compress cannot be predicted; None if it can."""
    if not job.graphs[0].on_gpu:  # with fp16_compress_hook, a step of 59 ms took 69 ms (gloo, two ranks, 8 MB)
        return "on a CPU, converting the gradients takes longer than it saves"
    graph = job.graphs[0]
    recorded = collectives(graph.run, graph.steps, graph.ledger)
    if recorded is not None and not recorded.float32:
        return "the gradients have 16 bits already"
    return None if np.isin(job.joint.kind, [KINDS.index(kind) for kind in GRADIENTS]).any() else "no gradients are sent"


def bucket_refusal_reason(job: JobGraph, value: Value) -> str | None:
    """Return why bucket_mb cannot be predicted; None if it can."""
    if (job.joint.bytes[job.joint.kind == KINDS.index("all-reduce")] < 0).any():
        return "the sizes of its collectives were not recorded"
    if not job.graphs[0].on_gpu:  # of 19 buckets on two ranks: predicted 17 % slower, measured 22 % faster
        return "on CPUs, exchanges run on the cores that compute; what many small ones cost there was not recorded"
    if len(_buckets(job, float(value) * MIB)[1]) == len(job.joint):
        return "no two of its collectives fit into one bucket; choose a larger size"
    return None
