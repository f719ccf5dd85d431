from dataclasses import replace

from gpulab.run import Loader, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import GPUS, event, gpu_samples, launched_kernel, on_gpu, stepped

CELL = "void cudnn::rnn_kernel<float>(params)"
H100 = replace(GPUS["H100"], memory_bytes=80 * 10**9)


def busy(grid, *, used=10e9, working_ms=90, loaders=()):
    """A GPU that always works, on kernels of so many blocks."""

    def step(at):
        waits = event(EventKind.SYNC, "cudaStreamSynchronize", at + 2, working_ms - 5)
        return [*launched_kernel(CELL, at, working_ms, number=round(at) + 1, grid=grid), waits]

    samples = gpu_samples({"memory_used_bytes": used})
    return on_gpu(stepped(step), machine=Machine(gpus=(H100,)), gpu_rows=samples, loaders=loaders)


def provoked_by_kernels_of_a_few_blocks():
    return busy(16, loaders=[Loader(workers=2, batch_size=4)])


def provoked_without_a_loader_to_name():
    return busy(16)


def spared_by_kernels_that_fill_the_gpu():
    return busy(1000)


def spared_where_the_memory_is_full():
    return busy(16, used=70e9)


def spared_where_the_host_is_the_limit():
    return busy(16, working_ms=40)


def spared_where_blocks_are_not_told():
    return busy(-1)


def spared_by_kernels_that_all_but_fill_the_gpu():
    return busy(128)
