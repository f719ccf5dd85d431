"""Four ranks whose batches may need different amounts of work from step to step."""

import numpy as np

from gpulab.tables import EventKind
from tests.support.runs.made_jobs import job
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of, stepped

RANKS = 4
LENGTHS_MS = 25.0 + np.random.default_rng(5).gamma(2.0, 8.0, (RANKS, 40))  # batches of sentences of any length


def provoked_by_batches_of_random_length():
    return job(lambda rank, step: float(LENGTHS_MS[rank, step]), steps=20)


def provoked_by_one_long_batch_in_turn():
    return job(lambda rank, step: 40.0 + 20.0 * (rank == step % RANKS), steps=13)


def spared_as_one_rank_is_a_straggler():
    return job(lambda rank, step: 40.0 + 20.0 * (rank == 2), steps=12)


def spared_as_all_ranks_have_long_batches_in_the_same_steps():
    return job(lambda rank, step: 40.0 + 20.0 * (step % 3 == 0), steps=12)


def spared_as_the_differences_are_small():
    return job(lambda rank, step: 40.0 + 0.05 * float(LENGTHS_MS[rank, step]), steps=12)


def spared_as_the_hosts_are_late_in_turn_and_not_the_kernels():
    def events(rank):
        def step(at):
            late = [25.0 * (each == round(at / 100) % RANKS) for each in range(RANKS)]
            arrival, done = at + late[rank] + 40, at + max(late) + 45
            moves = collective_columns(5_000_000, size=RANKS)
            return [
                event(EventKind.KERNEL, "ampere_sgemm", at + late[rank], 40),
                collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", arrival, done - arrival, moves=moves),
                event(EventKind.KERNEL, "multi_tensor_apply_kernel", done, at + 100 - done),
            ]

        return stepped(step, count=12)

    return [rank_of(events(rank), rank, ranks=RANKS, name=f"rank{rank}") for rank in range(RANKS)]


def spared_as_one_rank_alone_has_nobody_to_wait_for():
    return provoked_by_one_long_batch_in_turn()[0]
