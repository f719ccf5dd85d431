"""Overlap the exchange of gradients with the backward pass, on all ranks of a job."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats
from gpulab.replay.job.job_graph import JobGraph
from gpulab.replay.rewrite import Draw, Value
from gpulab.replay.rewrites.ranks.collectives import GRADIENTS, gradient_collectives
from gpulab.replay.rewrites.ranks.communication import BACKWARD_LEFT, SLOWDOWN, backward_ns, overlap_refusal_reason


def overlap_of_job(job: JobGraph, value: Value, draw: Draw) -> JobGraph:
    """Gradients are all-reduced during the backward pass, as DistributedDataParallel does.

    Models: as on one rank, of the transfers only: what a rank waits for others is replayed. Of each step, the exposed
    rest is at least the last bucket, and the time beyond the 60 to 90 % of the shortest backward pass among the ranks
    that run after the first bucket is full. Kernels slow down by 0 to 15 % of the hidden time. The exposed time never
    exceeds the present one.

    Cannot know: how the model's gradients are split into buckets.
    """
    joint = job.joint
    transfer_ns = joint.transfer_ns.copy()
    present_ns = transfer_ns * _exposed_share(job)
    for bucket in _exchanges(job):
        total, tail = float(joint.transfer_ns[bucket].sum()), float(joint.transfer_ns[bucket[-1]])
        hideable_ns = draw.between("backward left", *BACKWARD_LEFT) * _shortest_backward_ns(job, int(bucket[-1]))
        exposed_ns = max(tail, total - hideable_ns)
        exposed_ns += draw.between("slowed by communication", *SLOWDOWN) * (total - exposed_ns)
        transfer_ns[bucket] = 0.0
        transfer_ns[bucket[-1]] = min(exposed_ns, float(present_ns[bucket].sum()))
    return job.with_joint(transfer_ns=transfer_ns)


def gradients_in_no_time(job: JobGraph, value: Value) -> JobGraph:
    """Return the job whose gradients are transferred in no time; ranks still wait for each other."""
    return job.with_joint(transfer_ns=np.where(_are_gradients(job), 0.0, job.joint.transfer_ns))


def overlap_of_job_refusal_reason(job: JobGraph, value: Value) -> str | None:
    """Return why overlap cannot be predicted; None if it can."""
    for graph in job.graphs:
        reason = overlap_refusal_reason(graph, value)
        if reason is not None:
            return reason
    return None if _are_gradients(job).any() else "no gradients are exchanged"


def _are_gradients(job: JobGraph) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(job.joint.kind, [KINDS.index(kind) for kind in GRADIENTS])


def _exchanges(job: JobGraph) -> list[Ints]:
    """Return the collectives of gradients of each step and group of ranks, in the order in which they are launched."""
    joint = job.joint
    gradients = np.flatnonzero(_are_gradients(job))
    members = np.unique(joint.op[gradients] >= 0, axis=0, return_inverse=True)[1].reshape(-1)
    first_rank = (joint.op[gradients] >= 0).argmax(axis=1)
    order = np.lexsort((joint.op[gradients, first_rank], members, joint.step[gradients]))
    key = np.stack([joint.step[gradients], members])[:, order]
    starts = np.flatnonzero((np.diff(key, axis=1) != 0).any(axis=0)) + 1
    return np.split(gradients[order], starts) if len(order) else []


def _shortest_backward_ns(job: JobGraph, index: int) -> float:
    """Return the least device time of backward kernels among the ranks of a collective, in its step."""
    times = []
    for graph, op in zip(job.graphs, job.joint.op[index].tolist(), strict=True):
        step = int(graph.step_of[graph.device.call[op]]) if op >= 0 else -1
        if step >= 0:
            times.append(backward_ns(graph, step))
    return min(times, default=0.0)


def _exposed_share(job: JobGraph) -> Floats:
    """Return for each collective the largest share of it that no kernel hides, over its ranks."""
    share = np.zeros(len(job.joint))
    for rank, graph in enumerate(job.graphs):
        gradients = gradient_collectives(graph)
        of_op = np.zeros(len(graph.device) + 1)
        of_op[gradients.ops] = gradients.exposed_ns / np.maximum(gradients.recorded_ns, 1.0)
        share = np.maximum(share, of_op[job.joint.op[:, rank]])
    return share
