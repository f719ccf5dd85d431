"""Made ranks in several process groups: each computes and exchanges by its own program, in lock-step with its groups.

The simulation keeps when every rank arrived at every exchange: the oracle of what an analysis should say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpulab.tables import EventKind
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of

KERNELS = {
    "all-reduce": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce"),
    "all-gather": ("ncclDevKernel_AllGather_RING_LL", "allgather"),
    "reduce-scatter": ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
}
STEP_END_MS = 2.0


@dataclass(frozen=True)
class Exchange:
    """An exchange of one group of ranks."""

    group: str
    members: tuple[int, ...]
    transfer_ms: float = 5.0
    elements: int = 5_000_000
    kind: str = "all-reduce"


@dataclass
class Job:
    """The runs of a job, and for each exchange the step, the group and the true arrival of each rank in ms."""

    runs: list = field(default_factory=list)
    arrivals: list = field(default_factory=list)


def mesh_job(program, *, ranks, steps=8, clock=lambda rank, at_ms: at_ms, jitter=lambda rank, number: 0.0, **of_rank):
    """Simulate `program(step)`: a list of phases. A phase is (compute_ms(rank), the exchanges that follow it)."""
    job = Job()
    at = [0.0] * ranks
    events = [[] for _ in range(ranks)]
    sequence, number = {}, 0
    for step in range(steps):
        begins = list(at)
        for compute_ms, exchanges in program(step):
            arrivals = [at[rank] + compute_ms(rank) for rank in range(ranks)]
            for rank in range(ranks):
                start, end = clock(rank, at[rank]), clock(rank, arrivals[rank])
                events[rank].append(event(EventKind.KERNEL, "ampere_sgemm", start, end - start))
            at = arrivals
            for exchange in exchanges:
                key = exchange.group, exchange.members
                done = max(at[rank] for rank in exchange.members) + exchange.transfer_ms
                job.arrivals.append((step, exchange, {rank: at[rank] for rank in exchange.members}))
                for rank in exchange.members:
                    start, end = clock(rank, at[rank]), clock(rank, done) + jitter(rank, number)
                    name, operation = KERNELS[exchange.kind]
                    moves = collective_columns(
                        exchange.elements,
                        collective=operation,
                        group=exchange.group,
                        size=len(exchange.members),
                        sequence=sequence.get(key, 0),
                    )
                    events[rank].append(collective(name, start, end - start, moves=moves))
                sequence[key] = sequence.get(key, 0) + 1
                at = [done if rank in exchange.members else at[rank] for rank in range(ranks)]
                number += 1
        at = [time + STEP_END_MS for time in at]
        for rank in range(ranks):
            start, end = clock(rank, begins[rank]), clock(rank, at[rank])
            events[rank].append(event(EventKind.STEP, f"ProfilerStep#{step}", start, end - start))
    job.runs = [
        rank_of(
            sorted(events[rank], key=lambda each: each["start_ns"]),
            rank,
            ranks=ranks,
            name=f"rank{rank}",
            **{name: make(rank) for name, make in of_rank.items()},
        )
        for rank in range(ranks)
    ]
    return job
