"""Made ranks in lock-step: each computes, all exchange, each updates; the host launches a step and waits for it."""

from __future__ import annotations

from gpulab.tables import EventKind
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
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


def job(compute_ms, transfer_ms=5.0, *, ranks=4, steps=10, groups=None, offset_ms=lambda rank: 0.0, first_step=0):
    """The runs of a job. `groups`: the name of the group of each rank, if not all communicate with all.

    Steps before `first_step` happen, and are not recorded.
    """
    names = groups or ["0"] * ranks
    events = [[] for _ in range(ranks)]
    at = [0.0] * ranks
    for step in range(steps):
        arrivals = [at[rank] + compute_ms(rank, step) for rank in range(ranks)]
        for rank in range(ranks):
            start, number = at[rank] + offset_ms(rank), 10 * step
            members = [other for other in range(ranks) if names[other] == names[rank]]
            arrival = arrivals[rank] + offset_ms(rank)
            done = max(arrivals[other] for other in members) + transfer_ms + offset_ms(rank)
            moves = collective_columns(5_000_000, group=names[rank], size=len(members), sequence=step)
            work = [
                event(EventKind.KERNEL, "ampere_sgemm", start, arrival - start, correlation=number),
                collective(REDUCE, arrival, done - arrival, moves=moves, stream=7, correlation=number + 1),
                event(EventKind.KERNEL, "multi_tensor_apply_kernel", done, UPDATE_MS, correlation=number + 2),
            ]
            launches = [(start + index * LAUNCH_MS, number + index) for index in range(3)]
            calls = [
                event(EventKind.LAUNCH, "cudaLaunchKernel", at_ms, LAUNCH_MS, correlation=correlation)
                for at_ms, correlation in launches
            ]
            end = done + UPDATE_MS
            wait_from = start + 4 * LAUNCH_MS
            at[rank] = end - offset_ms(rank)
            if step < first_step:
                continue
            events[rank] += [
                event(EventKind.STEP, f"ProfilerStep#{step}", start, end - start),
                event(EventKind.OP, "aten::linear", start, 3 * LAUNCH_MS),
                *calls,
                event(EventKind.SYNC, "cudaDeviceSynchronize", wait_from, end - wait_from),
                *work,
            ]
    return [rank_of(events[rank], rank, ranks=ranks, name=f"rank{rank}") for rank in range(ranks)]
