"""cudaMalloc calls in every step, and harmless ones."""

from dataclasses import replace

from gpulab.tables import ALLOCATOR, EventKind
from tests.support.runs.made_runs import MS, event, rows, run_of, stepped

STEPS = 8


def reading(step, *, device=0, allocated=10**9, reserved=2 * 10**9, split=0, peak=None, retries=0, asked=9, **more):
    columns = {
        "at_ns": round(step * 100 * MS),
        "device": device,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "inactive_split_bytes": split,
        "peak_allocated_bytes": allocated if peak is None else peak,
        "peak_reserved_bytes": reserved,
        "retries": retries,
        "device_allocs": asked,
        "out_of_memory": 0,
    }
    return {**columns, **more}


def loop(calls, readings=(), only=range(STEPS)):
    """Steps of 100 ms, 60 of them on the GPU, then such calls of 10 ms each."""

    def step(at):
        calls_of_step = calls if round(at / 100) in only else ()
        return [
            event(EventKind.LAUNCH, "cudaLaunchKernel", at, 1),
            event(EventKind.KERNEL, "k", at + 1, 60),
            *(event(EventKind.ALLOC, name, at + 62 + 10 * number, 10) for number, name in enumerate(calls_of_step)),
        ]

    run = run_of(stepped(step, count=STEPS))
    return replace(run, allocator_rows=rows(ALLOCATOR, readings))


def provoked_by_emptying_the_cache_in_the_loop():
    return loop(("cudaFree", "cudaMalloc"), [reading(step, asked=9 + step) for step in range(STEPS)])


def provoked_by_a_gpu_that_is_full():
    readings = [reading(step, asked=9 + step, retries=step) for step in range(STEPS)]
    return loop(("cudaFree", "cudaMalloc"), readings)


def provoked_in_a_trace_from_elsewhere():
    return loop(("cudaFree", "cudaMalloc"))


def provoked_on_an_amd_gpu():
    return loop(("hipFree", "hipMalloc"))


def spared_as_only_the_first_steps_ask():
    return loop(("cudaMalloc", "cudaMalloc"), [reading(step) for step in range(STEPS)], only=(0, 1))


def spared_as_expandable_segments_map_memory():
    return loop(("cuMemMap", "cuMemSetAccess"), [reading(step) for step in range(STEPS)])


def spared_as_a_library_asks_and_pytorch_does_not():
    return loop(("cudaMalloc", "cudaFree"), [reading(step, asked=9) for step in range(STEPS)])


def spared_as_the_drivers_own_pool_gives_it_out():
    return loop(("cudaMallocAsync", "cudaFreeAsync"))


def spared_as_pinned_host_memory_is_asked_for():
    return loop(("cudaHostAlloc", "cudaFreeHost"))


def spared_as_the_gpu_works_meanwhile():
    run = loop(("cudaMalloc",))
    busy = [event(EventKind.KERNEL, "k", at, 99) for at in range(0, 100 * STEPS, 100)]
    calls = [event(EventKind.ALLOC, "cudaMalloc", at + 20, 10) for at in range(0, 100 * STEPS, 100)]
    marks = [event(EventKind.STEP, f"ProfilerStep#{at}", at, 100) for at in range(0, 100 * STEPS, 100)]
    return replace(run, event_rows=run_of([*marks, *busy, *calls]).event_rows)
