"""Items that need more CPU time than there is: not where workers wait, not where cores are free."""

from tests.cases.data.too_many_workers.case import beside_workers
from tests.support.runs.made_loading_runs import from_main, from_workers


def provoked_by_workers_that_fill_the_cores():
    return from_workers(cpu_ms=190, cores=2.0, load=1.0)


def provoked_by_a_batch_that_needs_more_than_a_step_has():
    """By the CPU time alone: in a container the load of all cores is that of many others' too."""
    return from_workers(cpu_ms=190, cores=2.0, load=0.2)


def provoked_by_workers_that_share_the_cores_with_others():
    return from_workers(cpu_ms=60, cores=2.0, load=1.0)


def provoked_by_workers_with_a_few_threads_that_idle():
    """A queue's feeder and one that a library started and hardly uses: not what fills the cores."""
    return from_workers(cpu_ms=190, cores=2.0, load=1.0, threads=5)


def provoked_by_a_main_process_with_one_core():
    return from_main(cores=1.0, on_gpu=False)


def spared_as_there_are_cores_for_more_workers():
    return from_workers(cpu_ms=190, load=0.3)


def spared_as_the_workers_wait_while_others_fill_the_cores():
    return from_workers(cpu_ms=5, cores=2.0, load=1.0)


def spared_as_the_workers_are_blocked():
    return from_workers(cpu_ms=190, blocked=0.8, cores=2.0, load=1.0)


def spared_as_threads_fill_the_cores():
    return from_workers(cpu_ms=190, cores=2.0, load=1.0, threads=10)


def spared_as_batches_are_not_late():
    return from_workers(cpu_ms=190, wait_ms=1.0, cores=2.0, load=1.0)


def spared_as_there_are_cores_for_workers():
    return from_main(cores=2.0)


def provoked_by_workers_that_take_the_cores_from_the_model():
    return beside_workers(60, cpu_ms=45)


def spared_as_the_loop_is_faster_without_workers():
    return beside_workers(60)


def spared_as_the_model_is_hardly_slower_beside_its_workers():
    return beside_workers(85, cpu_ms=45)


def spared_as_loading_is_too_cheap_to_slow_down_the_model():
    return beside_workers(60, cpu_ms=12)
