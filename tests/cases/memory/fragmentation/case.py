"""A nearly full GPU: fragmented, fully used, or with a harmless cache."""

from dataclasses import replace

from gpulab.run import Gpu, Machine
from gpulab.tables import ALLOCATOR, EventKind
from tests.support.runs.made_runs import MS, event, rows, run_of, stepped

GIB = 2**30
STEPS = 8


def reading(step, *, allocated=30, reserved=76, split=20, peak=55, retries=0, **more):
    columns = {
        "at_ns": round(step * 100 * MS),
        "device": 0,
        "allocated_bytes": allocated * GIB,
        "reserved_bytes": reserved * GIB,
        "inactive_split_bytes": split * GIB,
        "peak_allocated_bytes": peak * GIB,
        "peak_reserved_bytes": reserved * GIB,
        "retries": retries,
        "device_allocs": 9,
        "out_of_memory": 0,
    }
    return {**columns, **more}


def loop(*, capacity=80, gpus=None, **values):
    run = run_of(stepped(lambda at: [event(EventKind.KERNEL, "k", at, 99)], count=STEPS))
    gpus = (Gpu(index=0, name="Made GPU", memory_bytes=capacity * GIB),) if gpus is None else gpus
    readings = [reading(step, **values) for step in range(STEPS)]
    return replace(run, machine=Machine(gpus=gpus), allocator_rows=rows(ALLOCATOR, readings))


def provoked_by_pieces_on_a_full_gpu():
    return loop()


def provoked_by_pieces_for_which_the_cache_was_emptied():
    run = loop()
    readings = [reading(step, retries=step) for step in range(STEPS)]
    return replace(run, allocator_rows=rows(ALLOCATOR, readings))


def spared_as_a_cache_after_a_peak_has_room_beside_it():
    return loop(capacity=140)


def spared_as_nearly_all_is_given_out_at_the_peak():
    return loop(peak=74)


def spared_as_whole_blocks_are_kept_and_not_pieces():
    return loop(split=1)


def spared_as_how_large_the_gpu_is_is_not_known():
    return loop(gpus=())


def spared_as_pieces_are_not_told():
    run = loop()
    readings = [reading(step, inactive_split_bytes=-1) for step in range(STEPS)]
    return replace(run, allocator_rows=rows(ALLOCATOR, readings))


def spared_in_a_trace_from_elsewhere():
    return replace(loop(), allocator_rows=ALLOCATOR.empty())
