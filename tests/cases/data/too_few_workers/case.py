"""Too few workers: not where they wait for storage, not where the cores are full, not where an epoch begins."""

from dataclasses import replace

from gpulab.run import Loader
from tests.support.runs.made_loading_runs import WORKERS, epochs, from_main, from_workers, kernel
from tests.support.runs.made_runs import loader_call, mark, run_of, stepped


def provoked_by_workers_that_compute_with_cores_to_spare():
    return from_workers(cpu_ms=190, load=0.3)


def provoked_by_workers_that_wait_for_a_service():
    return from_workers(cpu_ms=5)


def provoked_by_workers_that_wait_while_others_fill_the_cores():
    return from_workers(cpu_ms=5, load=1.0, cores=2.0)


def provoked_by_workers_that_are_late_all_through_every_epoch():
    return from_workers(marks=epochs(60, 40))


def provoked_by_a_trace_that_tells_of_workers_only():
    step = stepped(lambda at: [loader_call(at, 40, workers=2), kernel(at + 40, 60)])
    return run_of(step, loaders=[Loader(workers=None)])


def spared_as_the_workers_wait_for_the_disk():
    return from_workers(cpu_ms=10, blocked=0.8)


def spared_as_the_files_lie_on_a_network():
    return from_workers(cpu_ms=10, loader=replace(WORKERS, location="fuse.sshfs"))


def spared_as_the_cores_are_full():
    return from_workers(cpu_ms=190, cores=2.0, load=1.0)


def spared_as_the_threads_of_the_workers_fill_the_cores():
    return from_workers(cpu_ms=190, cores=2.0, load=1.0, threads=10)


def spared_as_batches_are_late_only_where_an_epoch_begins():
    return from_workers(marks=epochs(90, 1))


def spared_as_taking_a_ready_batch_is_no_waiting():
    return from_workers(wait_ms=1.5)


def spared_as_a_large_batch_takes_time_to_take_over():
    return from_workers(wait_ms=15, taking_ms=7)


def provoked_by_a_large_batch_that_is_late():
    return from_workers(wait_ms=40, taking_ms=7)


def spared_as_the_main_process_builds_the_batches():
    return from_main()


def provoked_by_workers_that_finish_together_while_the_main_process_receives_batches():
    # One long wait and three short ones; what waits uses the CPU, because it receives other batches meanwhile.
    waits_ms = [80, 10, 10, 20] * 3
    marks = [mark(100 * step, waits_ms[step], cpu_ms=waits_ms[step] / 2.2, process_ms=60 * step) for step in range(10)]
    return from_workers(marks=marks, wait_ms=30, loader=replace(WORKERS, workers=4), cores=None)


def provoked_where_a_crowd_would_be_needed_on_two_cores():
    return from_workers(wait_ms=95, cpu_ms=100, cores=2.0)


def provoked_where_the_cores_carry_no_more():
    return from_workers(wait_ms=95, cpu_ms=5, cores=2.0, loader=replace(WORKERS, workers=8))
