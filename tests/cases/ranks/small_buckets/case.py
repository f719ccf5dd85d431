from gpulab.tables import EventKind
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of, stepped

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SMALL = collective_columns(30_000)  # 120 kB of float32


def training(talks, *, wrapped="DistributedDataParallel.forward", optimizer=True, compute_ms=60):
    def step(at):
        update = [event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 95, 1)] if optimizer else []
        return [
            event(EventKind.ANNOTATION, wrapped, at, 10),
            event(EventKind.KERNEL, "ampere_sgemm", at, compute_ms),
            *talks(at),
            *update,
            event(EventKind.KERNEL, "multi_tensor_apply_kernel", at + 95, 5),
        ]

    return rank_of(stepped(step), 0)


def many(at, *, moves=SMALL, count=100):
    return [collective(REDUCE, at + 60 + 0.3 * number, 0.2, moves=moves) for number in range(count)]


def provoked_by_a_hundred_small_buckets():
    return training(many)


def provoked_by_one_all_reduce_for_each_parameter():
    return training(many, wrapped="forward")


def spared_as_only_the_first_bucket_is_small():
    def talks(at):
        large = [
            collective(REDUCE, at + 62 + 10 * number, 9, moves=collective_columns(6_500_000)) for number in range(3)
        ]
        return [collective(REDUCE, at + 60, 1, moves=collective_columns(250_000)), *large]

    return training(talks)


def spared_as_synchronised_batch_normalisation_is_small_by_nature():
    return training(lambda at: [event(EventKind.OP, "SyncBatchNormBackward", at + 1, 1), *many(at)])


def spared_as_sharded_inference_adds_up_activations():
    return training(many, wrapped="forward", optimizer=False)


def spared_as_the_backward_pass_hides_them():
    return training(many, compute_ms=94)


def spared_as_the_buckets_are_large():
    return training(
        lambda at: [collective(REDUCE, at + 60 + 3 * n, 2, moves=collective_columns(6_500_000)) for n in range(10)]
    )


def spared_as_sizes_are_not_told():
    return training(lambda at: many(at, moves=None))
