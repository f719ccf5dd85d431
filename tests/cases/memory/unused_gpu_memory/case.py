"""A GPU whose memory is mostly free, or mostly used, by whomever; or a loop that another cause limits."""

from dataclasses import replace

import numpy as np

from gpulab.run import Gpu, Loader, Machine
from gpulab.tables import ALLOCATOR, EventKind
from tests.support.runs.made_runs import MS, event, gpu_samples, rows, run_of, stepped

GIB = 2**30
STEPS = 8


def loop(*, reserved=8, capacity=80, used=None, make_step=None, gpus=None):
    make_step = make_step or (lambda at: [event(EventKind.KERNEL, "k", at, 99)])
    run = run_of(stepped(make_step, count=STEPS), loaders=(Loader(workers=0, batch_size=32),))
    gpus = (Gpu(index=0, name="Made GPU", memory_bytes=capacity * GIB),) if gpus is None else gpus
    told = {column.name: reserved * GIB for column in ALLOCATOR.columns if column.name.endswith("_bytes")}
    counts = {"device": 0, "retries": 0, "device_allocs": 9, "out_of_memory": 0}
    readings = [{"at_ns": step * 100 * MS, **told, **counts} for step in range(STEPS)]
    samples = gpu_samples({"memory_used_bytes": np.nan if used is None else float(used * GIB)})
    return replace(run, machine=Machine(gpus=gpus), allocator_rows=rows(ALLOCATOR, readings), gpu_rows=samples)


def provoked_by_a_tenth_in_use():
    return loop()


def provoked_by_a_tenth_in_use_as_the_driver_says_too():
    return loop(used=9)


def spared_as_most_is_in_use():
    return loop(reserved=60)


def spared_as_other_processes_use_the_rest():
    return loop(used=70)


def spared_as_how_large_the_gpu_is_is_not_known():
    return loop(gpus=())


def spared_in_a_trace_from_elsewhere():
    return replace(loop(), allocator_rows=ALLOCATOR.empty())
