"""Made runs of loops that wait for data: built by workers, or by the main process."""

from __future__ import annotations

import numpy as np

from gpulab.run import Loader, Machine
from gpulab.tables import WORKER_SAMPLES, EventKind
from tests.support.runs.made_runs import event, host_sample, loader_call, mark, rows, run_of, stepped

WORKERS = Loader(workers=2, batch_size=32, pin_memory=False, batches=80, dataset="Photos", name="loader")
MAIN_PROCESS_LOADER = Loader(
    workers=0, batch_size=32, pin_memory=False, batches=80, dataset="Photos", name="train_loader"
)


def kernel(at, dur):
    return event(EventKind.KERNEL, "ampere_sgemm_128x64_nn", at, dur)


def from_workers(
    *,
    cpu_ms=50.0,
    wait_ms=40.0,
    taking_ms=0.0,
    loader=WORKERS,
    blocked=0.0,
    read=0.0,
    threads=3,
    load=0.4,
    cores=8.0,
    on_gpu=True,
    **more,
):
    """Ten steps of 100 ms, with workers that use `cpu_ms` per batch and are `blocked` for this share of time.

    The loop waits `wait_ms` for each batch and uses `taking_ms` of CPU time to receive it.
    """
    count = loader.workers
    marks = [mark(100 * step, wait_ms, cpu_ms=taking_ms, process_ms=60 * step) for step in range(10)]
    readings = {"workers": count, "workers_blocked": count * blocked, "cpu_frac": load}
    samples = [host_sample(at, worker_cpu_s=at / 1e5 * cpu_ms, **readings) for at in range(0, 1000, 50)]
    generator = np.random.default_rng(0)
    looks = [
        {
            "at_ns": round(at * 1e6),
            "worker": worker,
            "cpu_s": at / 1e5 * cpu_ms / count,
            "blocked": float(generator.random() < blocked),
            "read_bytes": read * at / 1e3 / count,
            "threads": float(threads),
        }
        for at in range(0, 1000, 50)
        for worker in range(count)
    ]
    work = kernel if on_gpu else lambda at, dur: event(EventKind.OP, "aten::mm", at, dur)
    events = stepped(lambda at: [loader_call(at, wait_ms, workers=count), work(at + wait_ms, 100 - wait_ms)], count=10)
    more = {"marks": marks, "samples": samples, **more}
    return run_of(events, loaders=[loader], cores=cores, worker_rows=rows(WORKER_SAMPLES, looks), **more)


def from_main(*, fetch_ms=40.0, cpu_frac=1.0, loader=MAIN_PROCESS_LOADER, cores=8.0, on_gpu=True, **readings):
    """Ten steps of 100 ms whose fetches use the CPU for `cpu_frac` of their time; `readings` go to the host samples."""
    cpu_ms = fetch_ms * cpu_frac
    marks = [
        mark(100 * step, fetch_ms, cpu_ms=cpu_ms, process_ms=step * (60 + cpu_ms), within_ms=cpu_ms)
        for step in range(10)
    ]
    samples = [
        host_sample(at, **{name: value(at) if callable(value) else value for name, value in readings.items()})
        for at in range(0, 1000, 50)
    ]
    work = kernel if on_gpu else lambda at, dur: event(EventKind.OP, "aten::mm", at, dur)
    events = stepped(lambda at: [loader_call(at, fetch_ms), work(at + fetch_ms, 100 - fetch_ms)], count=10)
    return run_of(events, marks=marks, samples=samples, loaders=[loader], cores=cores)


def epochs(first_ms, other_ms, *, epoch_length=5, count=10):
    """Marks of short epochs whose first batch takes `first_ms`; each epoch ends with a call that returns no batch."""
    marks = []
    for step in range(count):
        mark_args = {"process_ms": 60 * step, "epoch": step // epoch_length}
        marks.append(mark(100 * step, first_ms if step % epoch_length == 0 else other_ms, **mark_args))
        if step % epoch_length == epoch_length - 1:
            marks.append(mark(100 * step + 95, 0.1, yielded=False, **mark_args))
    return marks


def reading_epochs(reads, waits, *, available=64 * 2**30, limit=None, batches=10):
    """Epochs of ten steps of 100 ms; each reads so many bytes and waits so many ms for each batch."""
    marks, samples, total = [], [], 0.0
    for epoch, (read, wait_ms) in enumerate(zip(reads, waits, strict=True)):
        for batch in range(batches):
            at = 100.0 * (epoch * batches + batch)
            marks.append(mark(at, wait_ms, epoch=epoch, process_ms=at))
            total += read / batches
            samples.append(host_sample(at + 50, read_bytes=total, memory_available_bytes=float(available)))
        marks.append(mark(100.0 * (epoch + 1) * batches - 2, 1, epoch=epoch, yielded=False, process_ms=at))
    events = stepped(lambda at: [kernel(at + 60, 39)], count=batches * len(reads))
    machine = Machine(cores_allowed=8.0, memory_limit_bytes=limit)
    return run_of(events, marks=marks, samples=samples, loaders=[WORKERS], machine=machine)
