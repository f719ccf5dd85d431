"""A batch is copied from pageable memory in every step."""

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"


def step(name=PAGEABLE, copy_ms=18.0, beside_ms=0.0):
    """A copy that holds the host, then kernels; or one beside the kernels of an earlier batch."""

    def events(at):
        number = round(at)
        return [
            event(EventKind.OP, "aten::copy_", at, copy_ms + 1),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at, copy_ms + 0.5, correlation=number),
            event(EventKind.MEMCPY, name, at + 0.5, copy_ms, correlation=number, size=64_000_000, stream=14),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + copy_ms + 0.6, 0.2),
            event(EventKind.KERNEL, "ampere_sgemm", at, beside_ms),
            event(EventKind.KERNEL, "ampere_sgemm", at + copy_ms + 2, 98 - copy_ms),
        ]

    return events


def provoked_by_copies_that_take_a_fifth_of_each_step():
    return run_of(stepped(step()), loaders=[Loader(workers=4, batch_size=32, pin_memory=False, name="train_loader")])


def provoked_by_copies_of_a_loader_that_pins_already():
    return run_of(stepped(step()), loaders=[Loader(workers=4, batch_size=32, pin_memory=True)])


def provoked_by_a_call_that_drains_the_queue():
    def events(at):
        number = round(at)
        return [
            event(EventKind.KERNEL, "ampere_sgemm", at, 60),  # of the step before: the call waits for it
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at, 62, correlation=number),
            event(EventKind.MEMCPY, PAGEABLE, at + 60, 1.5, correlation=number, size=8_000_000),
            event(EventKind.OP, "aten::conv2d", at + 62, 8),
            event(EventKind.KERNEL, "ampere_sgemm", at + 70, 29),
        ]

    return run_of(stepped(events))


def spared_because_the_memory_is_pinned():
    return run_of(stepped(step(PINNED)))


def spared_because_kernels_hide_the_copies():
    return run_of(stepped(step(beside_ms=19.5)))


def spared_because_the_copies_are_of_a_few_bytes():
    return run_of(stepped(step(copy_ms=0.8)))


def spared_because_the_pageable_copy_goes_to_the_host():
    return run_of(stepped(step("Memcpy DtoH (Device -> Pageable)")))


def spared_because_the_call_is_long_only_while_the_gpu_works():
    def events(at):
        number = round(at)
        return [
            event(EventKind.KERNEL, "ampere_sgemm", at, 97),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 1, 60, correlation=number),
            event(EventKind.MEMCPY, PAGEABLE, at + 60, 0.9, correlation=number, size=8_000_000, stream=14),
        ]

    return run_of(stepped(events))
