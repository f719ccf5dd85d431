from gpulab.tables import EventKind
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of, stepped

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def training(talks, *, compute_ms=60, wrapped="DistributedDataParallel.forward", optimizer=True, **more):
    """Steps of 100 ms: compute, and collectives where `talks(at)` puts them."""

    def step(at):
        update = [event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 95, 1)] if optimizer else []
        return [
            event(EventKind.ANNOTATION, wrapped, at, 10),
            event(EventKind.KERNEL, "ampere_sgemm", at, compute_ms),
            *talks(at),
            *update,
            event(EventKind.KERNEL, "multi_tensor_apply_kernel", at + 95, 5),
        ]

    return rank_of(stepped(step), 0, **more)


def provoked_by_all_reduces_after_the_backward_pass():
    return training(lambda at: [collective(REDUCE, at + 60, 30, moves=collective_columns(90_000_000))])


def provoked_by_gradients_of_16_bits():
    return training(
        lambda at: [collective(REDUCE, at + 60, 30, moves=collective_columns(90_000_000, dtype="BFloat16"))]
    )


def provoked_by_collectives_that_the_trace_tells_nothing_of():
    return training(lambda at: [collective("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", at + 60, 30)])


def provoked_by_an_exchange_of_all_with_all():
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    return training(
        lambda at: [
            event(EventKind.ANNOTATION, "nccl:all_to_all", at + 55, 1),
            collective(name, at + 60, 20),
        ],
        wrapped="forward",
    )


def provoked_by_sharded_parameters_that_are_gathered_late():
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return training(lambda at: [collective(gather, at + 60, 25)], wrapped="FSDP::pre_forward")


def provoked_by_the_older_sharding():
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return training(lambda at: [collective(gather, at + 60, 25)], wrapped="FullyShardedDataParallel.forward")


def provoked_by_sharded_inference():
    name = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)"
    return training(lambda at: [collective(name, at + 60, 20)], wrapped="forward", optimizer=False)


def provoked_by_rccl():
    moves = collective_columns(8_816_192, dtype="BFloat16")
    return training(
        lambda at: [collective("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", at + 60, 30, moves=moves)]
    )


def spared_as_the_backward_pass_hides_it():
    return training(lambda at: [collective(REDUCE, at + 60, 34)], compute_ms=94)


def spared_as_it_takes_a_fiftieth_of_the_step():
    return training(lambda at: [collective(REDUCE, at + 60, 36)], compute_ms=94)


def spared_as_the_gpu_works_alone():
    return training(lambda at: [])


def spared_as_a_reduction_within_the_gpu_is_no_communication():
    return training(lambda at: [event(EventKind.KERNEL, "void at::native::reduce_kernel<512, 1>", at + 60, 30)])
