"""Other processes on the GPU."""

import numpy as np

from gpulab.run import Gpu, Machine
from gpulab.tables import ALLOCATOR, EventKind
from tests.support.runs.made_runs import MS, event, gpu_series, rows, run_of, stepped

CARD = Gpu(index=0, name="Made GPU", uuid="GPU-0", memory_bytes=80 << 30)
FREE = Gpu(index=1, name="Made GPU", uuid="GPU-1", memory_bytes=80 << 30)
GIB = float(1 << 30)


def run(sensors, gpus=(CARD,), reserved=None, step=None):
    usual = {"util_frac": 0.95, "memory_used_bytes": 10 * GIB}
    samples = gpu_series(lambda _: {**usual, **sensors})
    allocator = rows(ALLOCATOR, [] if reserved is None else [state(number, reserved) for number in range(6)])
    events = stepped(step or (lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at, 97)]))
    machine = Machine(gpus=gpus, cores_allowed=8.0)
    return run_of(events, gpu_rows=samples, machine=machine, allocator_rows=allocator)


def state(number, reserved):
    columns = {column.name: 0 for column in ALLOCATOR.columns}
    return {**columns, "at_ns": number * 100 * MS, "reserved_bytes": int(reserved)}


def provoked_by_a_process_that_takes_a_third_of_the_time():
    return run({"others_util_frac": 0.33, "others_memory_bytes": 20 * GIB}, gpus=(CARD, FREE))


def provoked_by_others_of_whose_memory_nothing_is_told():
    return run({"others_util_frac": 0.2})


def provoked_as_worth_knowing_by_a_notebook_that_was_left_open():
    return run({"others_util_frac": 0.0, "others_memory_bytes": 7 * GIB})


def provoked_as_a_suspicion_by_memory_that_nobody_here_holds():
    return run({"memory_used_bytes": 40 * GIB}, reserved=10 * GIB)


def spared_because_it_is_alone():
    return run({"others_util_frac": 0.0, "others_memory_bytes": 0.0})


def spared_because_it_cannot_be_told():
    return run({"others_util_frac": np.nan})


def spared_because_the_rest_is_what_cuda_itself_needs():
    return run({"memory_used_bytes": 11.5 * GIB}, reserved=10 * GIB)


def spared_because_a_moment_s_use_is_no_sharing():
    return run({"others_util_frac": 0.01, "others_memory_bytes": 0.3 * GIB})
