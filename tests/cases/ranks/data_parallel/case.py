from gpulab.run import Model
from gpulab.tables import EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, rank_of, stepped


def step(name="DataParallel.forward", *, gpus=4, spread_ms=20, gather_ms=5):
    """100 ms: the model is spread over the GPUs, they compute, and the first one gathers."""

    def events(at):
        copies = [
            event(EventKind.MEMCPY, "Memcpy PtoP (Device -> Device)", at, spread_ms / 2, device=0, size=100_000_000)
            for _ in range(gpus > 1)
        ]
        return [
            event(EventKind.ANNOTATION, name, at, 60),
            event(EventKind.OP, "Broadcast", at, spread_ms),
            *copies,
            *(event(EventKind.KERNEL, "ampere_sgemm", at + spread_ms, 60, device=gpu) for gpu in range(gpus)),
            event(EventKind.OP, "Gather", at + spread_ms + 60, gather_ms),
            event(
                EventKind.KERNEL,
                "multi_tensor_apply_kernel",
                at + spread_ms + 60 + gather_ms,
                40 - gather_ms - spread_ms,
                device=0,
            ),
        ]

    return events


def provoked_by_four_gpus_in_one_process():
    return rank_of(stepped(step()), loaders=[NO_WORKERS], models=(Model(kind="ResNet", name="net"),))


def provoked_even_where_it_costs_little():
    return rank_of(stepped(step(spread_ms=0.5, gather_ms=0.5)))


def spared_as_each_gpu_has_its_own_process():
    return rank_of(stepped(step("DistributedDataParallel.forward", gpus=1)))


def spared_as_there_is_one_gpu():
    return rank_of(stepped(step(gpus=1)))
