"""Memory that grows from step to step, or seems to."""

from dataclasses import replace

import numpy as np

from gpulab.run import Gpu, Machine
from gpulab.tables import ALLOCATOR, HOLDERS
from tests.support.runs.made_runs import MS, host_sample, mark, rows, run_of

MIB = 2**20
STEPS = 200


def marks(dur_ms=lambda number: 20.0):
    """A loop that fetches a batch at the beginning of each step."""
    starts = np.concatenate([[0.0], np.cumsum([dur_ms(number) for number in range(STEPS)])])
    return [mark(start, 1) for start in starts]


def on_gpu(allocated, *, peak=None, every=1, capacity_mib=80_000, **more):
    """A loop on a GPU; `allocated(step)` MiB are given out where each step begins."""
    peak = peak or (lambda step: allocated(step) + 5000)
    readings = [
        {
            "at_ns": round(20 * step * MS),
            "device": 0,
            "allocated_bytes": round(allocated(step) * MIB),
            "reserved_bytes": round((allocated(step) + 6000) * MIB),
            "inactive_split_bytes": 0,
            "peak_allocated_bytes": round(peak(step) * MIB),
            "peak_reserved_bytes": round((peak(step) + 500) * MIB),
            "retries": 0,
            "device_allocs": 9,
            "out_of_memory": 0,
        }
        for step in range(0, STEPS, every)
    ]
    run = run_of(marks=marks(), windows=[(0, 200)])
    gpus = (Gpu(index=0, name="Made GPU", memory_bytes=capacity_mib * MIB),)
    return replace(run, machine=Machine(gpus=gpus), allocator_rows=rows(ALLOCATOR, readings), **more)


def on_cpu(resident, *, dur_ms=lambda number: 20.0, windows=((0, 200),), **more):
    """A loop on the CPU, sampled every 100 ms; `resident(step)` MiB then."""
    steps = marks(dur_ms)
    starts = np.array([each["start_ns"] for each in steps]) / MS
    samples = [
        host_sample(at, rss_bytes=resident(np.interp(at, starts, np.arange(len(starts)))) * MIB)
        for at in range(0, round(starts[-1]), 100)
    ]
    return replace(run_of(marks=steps, samples=samples, windows=windows), **more)


def jitter(step):
    """No trend, a few MiB up and down."""
    return 3.0 * np.sin(12.9898 * step)


def grew(name, entries, size=-1, kind="graph"):
    return {"who": name, "kind": kind, "device": -1, "bytes": size, "tensors": entries, "largest": None}


def provoked_by_graphs_kept_on_the_gpu():
    return on_gpu(lambda step: 1000 + 2 * step, holder_rows=rows(HOLDERS, [grew("losses", 120)]))


def provoked_by_graphs_that_fit_where_an_earlier_run_has_left_room():
    return on_cpu(lambda step: 900, holder_rows=rows(HOLDERS, [grew("history", 120, 100 * MIB)]))


def provoked_by_losses_that_hold_large_buffers():
    """As recorded on an H100: mse_loss returns one number in a buffer of all elements, and detach() keeps it."""
    return on_gpu(lambda step: 1000 + 32 * step, holder_rows=rows(HOLDERS, [grew("losses", 56, 1792 * MIB, "buffer")]))


def provoked_by_growth_that_ends_soon():
    return on_gpu(lambda step: 60_000 + 20 * step + jitter(step))


def provoked_by_slow_steps_read_now_and_then():
    return on_gpu(lambda step: 1000 + 2 * step, every=5)


def provoked_in_host_memory():
    return on_cpu(lambda step: 400 + 0.7 * step + jitter(step))


def spared_as_what_a_growing_list_keeps_is_next_to_nothing():
    return on_cpu(lambda step: 900, holder_rows=rows(HOLDERS, [grew("history", 120, 120 * 512)]))


def spared_as_memory_stays():
    return on_gpu(lambda step: 1000 + jitter(step))


def spared_as_the_optimizer_makes_its_state_in_the_first_steps():
    return on_gpu(lambda step: 1000 + 2000 * min(step, 2))


def spared_as_a_cache_fills_and_is_full():
    return on_cpu(lambda step: 400 + 100 * min(1.0, step / 90))


def spared_as_inputs_grow_on_the_gpu():
    return on_gpu(lambda step: 1000 + 0.5 * step, peak=lambda step: 6000 + 40 * step)


def spared_as_inputs_grow_on_the_cpu():
    return on_cpu(lambda step: 400 + 0.7 * step, dur_ms=lambda number: 20 + 0.1 * number)


def spared_as_workers_start_and_nothing_grows_after():
    return on_cpu(lambda step: 400 if step < 12 else 600 + jitter(step))


def spared_as_only_what_is_recorded_takes_memory():
    return on_cpu(lambda step: 400 + 0.7 * min(step, 100), windows=((0, 2000),))


def spared_as_it_grows_by_next_to_nothing():
    return on_gpu(lambda step: 1000 + step / 2048)


def spared_as_there_are_too_few_steps():
    run = on_gpu(lambda step: 1000 + 2 * step)
    few = run.mark_rows.select(np.arange(len(run.mark_rows)) < 12)
    return replace(run, mark_rows=few)


def spared_as_nothing_was_read():
    return run_of(marks=marks(), windows=[(0, 200)])
