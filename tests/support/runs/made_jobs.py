"""Made ranks in lock-step: each computes, all exchange, each updates; the host launches a step and waits for it."""

from __future__ import annotations

from itertools import pairwise

from gpulab.tables import EventKind
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
AUTOGRAD = "autograd::engine::evaluate_function"
UPDATE_MS, LAUNCH_MS = 2.0, 0.01


def step_ends(compute_ms, transfer_ms, *, ranks, steps, synced_every=1):
    """The oracle: when each step of each rank ends, by the recursion that defines such a job."""
    at = [0.0] * ranks
    ends = []
    for step in range(steps):
        arrivals = [at[rank] + compute_ms(rank, step) for rank in range(ranks)]
        if step % synced_every == synced_every - 1:
            arrivals = [max(arrivals) + transfer_ms] * ranks
        at = [arrival + UPDATE_MS for arrival in arrivals]
        ends.append(at)
    return ends


def overlapped_step_ends(compute_ms, backward_ms, transfer_ms, *, buckets, ranks, steps):
    """The oracle of a job that sends each bucket as soon as its part of the backward pass has ended on all ranks."""
    at = [0.0] * ranks
    ends = []
    for step in range(steps):
        link_free = 0.0
        for bucket in range(1, buckets + 1):
            left_ms = backward_ms * (1 - bucket / buckets)
            ready = max(at[rank] + compute_ms(rank, step) - left_ms for rank in range(ranks))
            link_free = max(link_free, ready) + transfer_ms / buckets
        at = [max(link_free, at[rank] + compute_ms(rank, step)) + UPDATE_MS for rank in range(ranks)]
        ends.append(at)
    return ends


def job(
    compute_ms,
    transfer_ms=5.0,
    *,
    ranks=4,
    steps=10,
    groups=None,
    offset_ms=lambda rank: 0.0,
    first_step=0,
    backward_ms=0.0,
    buckets=1,
):
    """The runs of a job. `groups`: the name of the group of each rank, if not all communicate with all.

    Steps before `first_step` happen, and are not recorded. The last `backward_ms` of the computation are the backward
    pass, and the exchange after it has so many `buckets`.
    """
    names = groups or ["0"] * ranks
    events = [[] for _ in range(ranks)]
    at = [0.0] * ranks
    for step in range(steps):
        arrivals = [at[rank] + compute_ms(rank, step) for rank in range(ranks)]
        for rank in range(ranks):
            start, number = at[rank] + offset_ms(rank), 100 * step
            members = [other for other in range(ranks) if names[other] == names[rank]]
            arrival = arrivals[rank] + offset_ms(rank)
            together = max(arrivals[other] for other in members) + offset_ms(rank)
            done = together + transfer_ms
            work = [("ampere_sgemm", start, arrival - start - backward_ms)]
            if backward_ms:
                work.append(("ampere_sgemm_nt", arrival - backward_ms, backward_ms))
            computed = len(work)
            sent = [together + transfer_ms * part / buckets for part in range(buckets + 1)]
            work += [(REDUCE, begin, end - begin) for begin, end in pairwise([arrival, *sent[1:]])]
            work.append(("multi_tensor_apply_kernel", done, UPDATE_MS))
            kernels = [
                collective(
                    name,
                    begin,
                    dur,
                    moves=collective_columns(
                        5_000_000 // buckets,
                        group=names[rank],
                        size=len(members),
                        sequence=step * buckets + index - computed,
                    ),
                    stream=7,
                    correlation=number + index,
                )
                if name is REDUCE
                else event(EventKind.KERNEL, name, begin, dur, correlation=number + index)
                for index, (name, begin, dur) in enumerate(work)
            ]
            launches = [(start + index * LAUNCH_MS, number + index) for index in range(len(work))]
            calls = [
                event(EventKind.LAUNCH, "cudaLaunchKernel", at_ms, LAUNCH_MS, correlation=correlation)
                for at_ms, correlation in launches
            ]
            if backward_ms:
                calls.append(event(EventKind.OP, f"{AUTOGRAD}: MmBackward0", start + LAUNCH_MS, LAUNCH_MS))
            end = done + UPDATE_MS
            wait_from = start + (len(work) + 1) * LAUNCH_MS
            at[rank] = end - offset_ms(rank)
            if step < first_step:
                continue
            events[rank] += [
                event(EventKind.STEP, f"ProfilerStep#{step}", start, end - start),
                event(EventKind.OP, "aten::linear", start, len(work) * LAUNCH_MS),
                *calls,
                event(EventKind.SYNC, "cudaDeviceSynchronize", wait_from, end - wait_from),
                *kernels,
            ]
    return [rank_of(events[rank], rank, ranks=ranks, name=f"rank{rank}") for rank in range(ranks)]
