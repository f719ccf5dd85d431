"""A batch is copied from pinned memory while nothing computes."""

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

PINNED = "Memcpy HtoD (Pinned -> Device)"


def step(name=PINNED, copy_ms=20.0, kernel_at_ms=20.0):
    def events(at):
        number = round(at)
        return [
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at, 0.02, correlation=number),
            event(EventKind.MEMCPY, name, at, copy_ms, correlation=number, size=500_000_000, stream=14),
            event(EventKind.KERNEL, "ampere_sgemm", at + kernel_at_ms, 100 - kernel_at_ms),
        ]

    return events


def provoked_by_pinned_copies_before_the_kernels():
    return run_of(stepped(step()), loaders=[Loader(workers=4, pin_memory=True, name="batches")])


def spared_because_the_next_batch_is_copied_beside_the_kernels():
    return run_of(stepped(step(kernel_at_ms=0.0)))


def spared_because_the_copies_are_of_a_few_bytes():
    return run_of(stepped(step(copy_ms=3.0, kernel_at_ms=3.0)))


def spared_because_the_memory_is_pageable():
    return run_of(stepped(step("Memcpy HtoD (Pageable -> Device)")))


def spared_because_there_are_hardly_any_kernels_to_hide_behind():
    return run_of(stepped(step(copy_ms=96.0, kernel_at_ms=97.0)))
