"""Made the two files beside it; kept to tell what is in them, since only the gpulab of that time can make them again.

git archive 913392d | tar -x -C old && cd old && PYTHONPATH=. python .../tests/data/schema_1_0.py .../tests/data
"""

import dataclasses
import json
import sys

import numpy as np

from gpulab import store, trace
from gpulab.run import Gap, Gpu, Loader, Machine, Recording
from gpulab.tables import GPU_SAMPLES, HOST_SAMPLES, MARKS, MarkKind, Words

assert (store.MAJOR, store.MINOR) == (1, 0), "this is not the gpulab that wrote schema 1.0"

ZERO_US = 5_000_000.125


def event(cat, name, start_us, dur_us, pid=42, tid=42, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": dur_us, "args": args}


def step(number):
    """Seven host events and five of the device, 100 µs apart from those of the step before."""
    at, link = ZERO_US + 100 * number, 10 * number
    launch = {"grid": [196, 4, 1], "block": [64, 4, 1], "est. achieved occupancy %": 37 + number}
    on_gpu = {"pid": 1, "tid": 7, "device": 1, "stream": 7}
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, 99.5),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, 20.001),
        event("cpu_op", "aten::größe", at + 22, 9.25, tid=43 + number % 2),
        event("cuda_runtime", "cudaLaunchKernel", at + 23, 3, correlation=link + 1),
        event("cuda_runtime", "cudaLaunchKernel", at + 27, 2.5, correlation=link + 2),
        event("cuda_runtime", "cudaMemcpyAsync", at + 32, 4, correlation=link + 3, bytes=4096),
        event("cuda_runtime", "cudaDeviceSynchronize", at + 40, 50),
        event("kernel", "gemm", at + 30, 10, correlation=link + 1, **on_gpu, **launch),
        event("kernel", "only its grid is told", at + 41, 3.125, correlation=link + 2, **on_gpu, grid=[3, 2, 1]),
        event("kernel", "nothing is told", at + 45, 0, **on_gpu),
        event("kernel", "occupancy zero", at + 46, 1, **on_gpu, **{"est. achieved occupancy %": 0}),
        event("gpu_memcpy", "Memcpy HtoD", at + 50, 5, correlation=link + 3, bytes=4096, **(on_gpu | {"stream": 20})),
    ]


def bare(steps=1):
    """A run as a trace gives it, without marks and samples: three of its tables have no rows."""
    document = {"schemaVersion": 1, "traceEvents": [each for number in range(steps) for each in step(number)]}
    return trace.read(json.dumps(document).encode(), name="of old")


def made():
    """A run of four steps with everything that schema 1.0 could hold."""
    marks = {column.name: np.arange(6) * 1000 for column in MARKS.columns}
    marks |= {"kind": [MarkKind.NEXT, MarkKind.OPTIMIZER] * 3, "loader": [0, -1] * 3, "epoch": [0, -1] * 3}
    marks |= {"yielded": [True, False] * 3, "end_ns": np.arange(6) * 1000 + 7}
    gpu = {column.name: np.linspace(0.1, 0.7, 5) * (number + 1) for number, column in enumerate(GPU_SAMPLES.columns)}
    gpu |= {"at_ns": np.arange(5) * 80_000, "late_ns": np.arange(5), "device": [0] * 5, "energy_j": [np.nan] * 5}
    host = {column.name: np.linspace(0.2, 0.9, 4) * (number + 1) for number, column in enumerate(HOST_SAMPLES.columns)}
    host |= {"at_ns": np.arange(4) * 90_000, "late_ns": np.arange(4), "workers": [np.nan, 0, 1, 2]}
    host |= {"frame": Words.of(["batch (feed.py:7)", None, "batch (feed.py:7)", "loop (feed.py:12)"])}
    return dataclasses.replace(
        bare(4),
        machine=Machine(gpus=(Gpu(index=0, name="NVIDIA H100", memory_bytes=2**36, mig=False),), cores=8),
        began_ns=1_767_225_600_123_456_789,
        outcome="ValueError",
        rank=5,
        recording=Recording(
            windows_ns=((0, 400_000),),
            pauses_ns=((399_000, 400_000),),
            activities=("cpu", "cuda"),
            left_out=(Gap(what="power", why="not told", fix="none"),),
            lost={"event that is not JSON": 2},
        ),
        loaders=(Loader(workers=0, batch_size=32, dataset="Images"),),
        facts={"threads": "8"},
        mark_rows=MARKS.rows(marks),
        gpu_rows=GPU_SAMPLES.rows(gpu),
        host_rows=HOST_SAMPLES.rows(host),
    )


if __name__ == "__main__":
    store.save(made(), f"{sys.argv[1]}/schema_1_0.gpulab")
    store.save(bare(), f"{sys.argv[1]}/schema_1_0_of_a_trace.gpulab")
