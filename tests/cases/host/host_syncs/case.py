"""The host waits for the GPU, and the queue runs dry."""

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, loader_call, run_of, stepped

TO_HOST, TO_DEVICE = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"


def kernel(at, dur):
    return event(EventKind.KERNEL, "ampere_sgemm", at, dur)


def waits(*, ops=("aten::item", "aten::_local_scalar_dense"), call="cudaStreamSynchronize", after=20.0, then=None):
    """Kernels for 60 ms; the host waits for them, and calls operators until there is work again."""

    def events(at):
        return [
            kernel(at, 60),
            *(event(EventKind.OP, name, at + 1, 59.2) for name in ops),
            event(EventKind.SYNC, call, at + 2, 58.1),
            then(at) if then else event(EventKind.OP, "aten::add", at + 60.2, after),
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 60 + after, 0.01),
            kernel(at + 60 + after, 40 - after),
        ]

    return events


def copies(name, copy_ms=2.0, call_ms=60.0):
    """Kernels for 60 ms, then a copy whose call holds the host until it is done; then the queue is filled again."""

    def events(at):
        number = round(at)
        return [
            kernel(at, 60),
            *(
                event(EventKind.OP, op, at + 1, call_ms + copy_ms)
                for op in ("aten::to", "aten::_to_copy", "aten::copy_")
            ),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 1, call_ms + copy_ms - 1, correlation=number),
            event(EventKind.MEMCPY, name, at + 60, copy_ms, correlation=number, size=1000),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + call_ms + copy_ms + 0.1, 0.1),
            event(EventKind.OP, "aten::add", at + 63, 12),
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 75, 0.01),
            kernel(at + 75, 24),
        ]

    return events


def provoked_by_item():
    return run_of(stepped(waits()))


def provoked_by_a_boolean_mask():
    return run_of(stepped(waits(ops=("aten::index", "aten::nonzero"))))


def provoked_by_a_tensor_that_is_fetched():
    return run_of(stepped(copies(TO_HOST)))


def provoked_by_results_whose_copies_nothing_hides():
    return run_of(stepped(copies(TO_HOST, copy_ms=14.0)))


def provoked_by_torch_cuda_synchronize():
    return run_of(stepped(waits(ops=(), call="cudaDeviceSynchronize")))


def spared_because_hardly_any_idle_time_follows():
    return run_of(stepped(waits(after=1.0)))


def spared_because_the_value_is_on_the_cpu():
    return run_of(stepped(lambda at: [event(EventKind.OP, "aten::item", at, 30), kernel(at + 40, 60)]))


def spared_because_it_is_a_batch_that_is_copied_to_the_gpu():
    return run_of(stepped(copies(TO_DEVICE)))


def spared_because_the_idle_time_after_it_is_the_loader_s():
    run = stepped(waits(after=20.0, then=lambda at: loader_call(at + 60.1, 19.9)))
    return run_of(run, loaders=[Loader(workers=0)])


def spared_because_the_copy_to_the_host_is_not_waited_for():
    return run_of(stepped(copies(TO_HOST, copy_ms=2.0, call_ms=1.0)))


def spared_because_it_is_the_profiler_s_own_at_the_end():
    """No loop: the whole run is judged, and after its last work the profiler stops."""
    events = [
        event(EventKind.OP, "aten::mm", 0, 5),
        event(EventKind.LAUNCH, "cudaLaunchKernel", 1, 0.01),
        kernel(2, 60),
        event(EventKind.SYNC, "cudaDeviceSynchronize", 6, 60),
        event(EventKind.OP, "aten::view", 70, 30),
    ]
    return run_of(events)
