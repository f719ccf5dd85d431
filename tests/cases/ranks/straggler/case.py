"""Eight ranks, one of which may arrive late at the collectives."""

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import (
    collective,
    collective_columns,
    event,
    gpu_samples,
    loader_call,
    rank_of,
    stepped,
)

RANKS = 8
LATE = 3
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allreduce"
TO_NEXT = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send"


def job(fetch_ms=lambda rank, step: 0, compute_ms=lambda rank, step: 60, *, kind=REDUCE, transfer_ms=5, **of_rank):
    """Steps of 100 ms: fetch, compute, communicate until all ranks have arrived, and update."""

    def events(rank):
        def step(at):
            number = round(at / 100)
            arrives = [fetch_ms(each, number) + compute_ms(each, number) for each in range(RANKS)]
            arrival, done = at + arrives[rank], at + max(arrives) + transfer_ms
            fetch = fetch_ms(rank, number)
            return [
                *([loader_call(at, fetch)] if fetch else []),
                event(EventKind.ANNOTATION, "DistributedDataParallel.forward", at + fetch, 10),
                event(EventKind.KERNEL, "ampere_sgemm", at + fetch, arrival - at - fetch),
                collective(
                    kind[0],
                    arrival,
                    done - arrival,
                    moves=collective_columns(5_000_000, collective=kind[1], size=RANKS),
                ),
                event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", done, 1),
                event(EventKind.KERNEL, "multi_tensor_apply_kernel", done, at + 100 - done),
            ]

        return stepped(step)

    return [
        rank_of(
            events(rank),
            rank,
            ranks=RANKS,
            name=f"rank{rank}",
            **{field: give(rank) for field, give in of_rank.items()},
        )
        for rank in range(RANKS)
    ]


def slow(value, usual):
    return lambda rank, step: value if rank == LATE else usual


def provoked_by_one_rank_that_builds_its_batches_itself():
    return job(
        fetch_ms=slow(30, 0),
        loaders=lambda rank: [Loader(workers=0 if rank == LATE else 4, batch_size=32)],
    )


def provoked_by_one_rank_whose_gpu_runs_at_a_lower_clock():
    clock = {True: 1100.0, False: 1700.0}
    return job(
        compute_ms=slow(90, 60),
        gpu_rows=lambda rank: gpu_samples({"util_frac": 0.9, "sm_clock_mhz": clock[rank == LATE]}),
    )


def provoked_by_one_rank_that_has_more_to_compute():
    return job(compute_ms=slow(85, 60))


def spared_as_ranks_take_turns_in_being_late():
    return job(compute_ms=lambda rank, step: 85 if rank == step % RANKS else 60)


def spared_as_the_network_is_slow_for_all():
    return job(transfer_ms=35)


def spared_as_stages_of_a_pipeline_wait_for_one_another_by_design():
    return job(compute_ms=slow(90, 60), kind=TO_NEXT)


def spared_as_all_ranks_wait_for_their_data_alike():
    return job(fetch_ms=lambda rank, step: 30, loaders=lambda rank: [Loader(workers=0)])


def spared_as_the_wait_is_small():
    return job(compute_ms=slow(63, 60))


def spared_as_one_rank_alone_tells_nothing():
    return job(compute_ms=slow(90, 60))[0]
