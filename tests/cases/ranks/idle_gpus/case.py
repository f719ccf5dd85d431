import numpy as np

from gpulab.run import Gpu, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, gpu_samples, rank_of, stepped

GIB = float(1 << 30)
BUSY = {"util_frac": 0.95, "memory_used_bytes": 20 * GIB, "others_memory_bytes": 0.0}
FREE = {"util_frac": 0.0, "memory_used_bytes": 0.3 * GIB, "others_memory_bytes": 0.0}
TAKEN = {"util_frac": 0.0, "memory_used_bytes": 40 * GIB, "others_memory_bytes": 40 * GIB}


def working(*sensors, gpus=None, devices=(0,)):
    def step(at):
        return [event(EventKind.KERNEL, "ampere_sgemm", at, 90, device=device) for device in devices]

    count = len(sensors) if gpus is None else gpus
    machine = Machine(gpus=tuple(Gpu(index=index, name="Made GPU") for index in range(count)))
    return with_machine(rank_of(stepped(step), gpu_rows=gpu_samples(*sensors)), machine)


def with_machine(run, machine):
    from dataclasses import replace

    return replace(run, machine=machine)


def provoked_by_one_gpu_of_four_that_works():
    return working(BUSY, FREE, FREE, FREE)


def provoked_by_one_gpu_of_two_that_works_a_little():
    return working({**BUSY, "util_frac": 0.3}, FREE)


def provoked_by_the_work_in_a_trace():
    def step(at):
        return [
            event(EventKind.KERNEL, "ampere_sgemm", at, 90, device=0),
            event(EventKind.KERNEL, "ampere_sgemm", at, 0.5, device=1),
        ]

    return rank_of(stepped(step))


def spared_as_all_gpus_work():
    return working(BUSY, {**BUSY, "util_frac": 0.5})


def spared_as_the_other_gpu_is_taken():
    return working(BUSY, TAKEN)


def spared_as_what_the_other_gpu_does_is_not_told():
    return working(BUSY, {**FREE, "util_frac": np.nan})


def spared_as_a_trace_of_one_process_does_not_tell_of_others():
    return working(gpus=8)


def spared_as_there_is_one_gpu():
    return working(BUSY)


def spared_as_no_gpu_works_at_all():
    return working(FREE, FREE)
