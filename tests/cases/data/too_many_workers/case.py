"""More workers than help: not where they are needed, not where they are kept."""

from dataclasses import replace

from tests.support.runs.made_loading_runs import WORKERS, epochs, from_main, from_workers
from tests.support.runs.made_runs import host_sample, mark

MANY = replace(WORKERS, workers=12)


def provoked_by_workers_that_are_started_for_each_short_epoch():
    return from_workers(wait_ms=1.0, loader=replace(WORKERS, workers=8), marks=epochs(90, 1))


def provoked_by_workers_whose_start_is_what_takes_long():
    """By samples of the main thread: starting is no part of any call of __next__."""
    place = "torch.utils.data.dataloader.DataLoader.__iter__"
    samples = [host_sample(at, workers=2.0, called=place if at == 450 else None) for at in range(0, 1000, 50)]
    return from_workers(wait_ms=1.0, marks=epochs(2, 1), samples=samples)


def provoked_by_twelve_workers_where_two_keep_up():
    return from_workers(wait_ms=1.0, cpu_ms=5, loader=MANY)


PARTS = replace(WORKERS, batch_tensors=32, batch_bytes=32_000, batch_objects=0)


def provoked_by_batches_that_are_cheaper_to_load_than_to_pass():
    """Receiving 32 tensors takes 15 ms, mostly of CPU time; loading and sending them takes a worker 6 ms."""
    return from_workers(wait_ms=15, taking_ms=8, cpu_ms=6, loader=PARTS, on_gpu=False, cores=2.0)


def fetches(traced_ms, *waits_ms):
    """Steps of 100 ms whose fetches take so long, of which 8 ms are CPU time; traced ones are typical."""
    marks = [mark(100 * step, wait_ms, cpu_ms=8, process_ms=60 * step) for step, wait_ms in enumerate(waits_ms)]
    return from_workers(wait_ms=traced_ms, cpu_ms=6, loader=PARTS, on_gpu=False, cores=2.0, marks=marks)


def provoked_by_fetches_of_different_length_whose_excess_is_less_than_a_tenth_of_a_step():
    """Most take 20 ms, some 7 ms: more workers cannot save a tenth of a step."""
    return fetches(13.5, 8, *[7] * 3, *[20] * 6)


def beside_workers(idle_ms, *, cpu_ms=5, passes=4, batches=12):
    """Passes over a DataLoader on a CPU: 100 ms per batch, and near the end, when the workers are idle, `idle_ms`."""
    loader = replace(WORKERS, persistent_workers=True, prefetch_factor=2, worker_batch_cpu_ns=cpu_ms * 1_000_000)
    marks, at = [], 0.0
    for epoch in range(passes):
        for batch in range(batches):
            marks.append(mark(at, 1.0, epoch=epoch, process_ms=at))
            at += idle_ms if batch >= batches - 4 else 100.0
        marks.append(mark(at, 0.1, epoch=epoch, process_ms=at, yielded=False))
        at += 0.1
    return from_workers(wait_ms=1.0, cpu_ms=cpu_ms, loader=loader, on_gpu=False, cores=2.0, marks=marks)


def provoked_by_a_model_that_is_faster_while_its_workers_are_idle():
    return beside_workers(60)


def spared_as_the_model_is_as_fast_beside_its_workers():
    return beside_workers(97)


def spared_as_loading_in_the_main_process_would_take_as_long():
    return beside_workers(60, cpu_ms=45)


def spared_as_most_batches_are_late_by_more_than_a_tenth_of_a_step():
    return fetches(23.5, 40, *[7] * 3, *[40] * 6)


def spared_as_loading_costs_more_than_passing():
    return from_workers(wait_ms=15, taking_ms=8, cpu_ms=70, loader=PARTS, on_gpu=False, cores=2.0)


def spared_as_the_parts_of_a_batch_are_unknown():
    return from_workers(wait_ms=15, taking_ms=8, cpu_ms=6, on_gpu=False, cores=2.0)


def spared_as_the_workers_are_kept_from_epoch_to_epoch():
    return from_workers(wait_ms=1.0, loader=replace(WORKERS, persistent_workers=True), marks=epochs(90, 1))


def spared_as_the_first_batch_takes_so_long_that_all_may_be_needed():
    """Items wait for a service for half a second each: that workers compute nothing does not make them idle."""
    marks = [mark(100 * step, 700 if step == 0 else 1, process_ms=60 * step) for step in range(10)]
    return from_workers(wait_ms=1.0, cpu_ms=5, loader=MANY, marks=marks)


def spared_as_nothing_is_started():
    samples = [host_sample(at, workers=2.0, called="torch.serialization.save") for at in range(0, 1000, 50)]
    return from_workers(wait_ms=1.0, marks=epochs(2, 1), samples=samples)


def spared_as_they_are_late():
    return from_workers(loader=MANY)


def spared_as_two_workers_are_few():
    return from_workers(wait_ms=1.0, cpu_ms=5)


def spared_as_there_are_none():
    return from_main()
