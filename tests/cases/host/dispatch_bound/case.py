"""Operators that are called rather than computed, and what only looks like it."""

from gpulab.run import Loader
from gpulab.tables import STALLS, EventKind, StallKind
from tests.support.runs.made_runs import event, host_samples, loader_call, rows, run_of, stall, stepped


def pieces(at, *, kernel_ms=0.005, count=400):
    events = []
    for number in range(count):
        start = at + number * 0.25
        events.append(event(EventKind.OP, "aten::add", start, 0.1))
        events.append(event(EventKind.LAUNCH, "cudaLaunchKernel", start + 0.05, 0.01, correlation=number))
        events.append(event(EventKind.KERNEL, "vectorized_elementwise_kernel", start + 0.07, kernel_ms))
    return events


def provoked_by_many_small_kernels():
    return run_of(stepped(pieces))


def provoked_by_many_small_operators_on_a_cpu():
    return run_of(
        stepped(lambda at: [event(EventKind.OP, "aten::add", at + number * 0.02, 0.004) for number in range(5000)])
    )


def spared_by_large_kernels_behind_the_same_calls():
    return run_of(stepped(lambda at: pieces(at, kernel_ms=0.24)))


def spared_where_batches_are_waited_for():
    def step(at):
        return [loader_call(at, 85, workers=2), *pieces(at + 85, count=60)]

    return run_of(stepped(step), loaders=[Loader(workers=2)])


def spared_where_the_gpu_is_waited_for():
    def step(at):
        return [event(EventKind.SYNC, "cudaStreamSynchronize", at, 85), *pieces(at + 85, count=60)]

    return run_of(stepped(step))


def spared_where_operators_are_called_while_a_function_is_compiled():
    """The compiler calls operators too, to see what they would do."""
    compiled = rows(STALLS, [stall(100 * step, 95, "f (a.py:1)", StallKind.COMPILE) for step in range(8)])

    def step(at):
        return [*pieces(at, count=380), event(EventKind.KERNEL, "ampere_sgemm", at + 96, 3)]

    return run_of(stepped(step, count=8), stall_rows=compiled, samples=host_samples(800))
