"""More threads than cores: not where they fit, not where a neighbour is busy, not where a GPU computes."""

from gpulab.tables import EventKind
from tests.support.runs.made_loading_runs import from_workers
from tests.support.runs.made_runs import MS, event, host_sample, run_of, stepped


def computing(
    *,
    threads="8",
    cores=2.0,
    preempted_per_s=2000,
    throttled=0.0,
    delayed=0.0,
    running=1.9,
    op="aten::convolution",
    **facts,
):
    """Ten steps of a model on the CPU, whose threads lose their cores so many times a second; they take a second."""
    samples = [
        host_sample(
            at,
            process_cpu_s=at / 1e3 * running,
            preempted=at / 1e3 * preempted_per_s,
            throttled_s=at / 1e3 * throttled,
            main_delayed_s=at / 1e3 * delayed,
            cpu_frac=1.0,
        )
        for at in range(0, 1000, 50)
    ]
    events = stepped(lambda at: [event(EventKind.OP, op, at, 97)], count=10)
    return run_of(events, samples=samples, cores=cores, facts={"threads": threads, **facts})


def beside_blas(*, threads="2", blas_threads="1", blas_cores=0.6, delayed=0.2, **more):
    """The same with threads of NumPy's BLAS, which used so many cores and spin for 0.13 s after a product.

    The main thread waits for a core for this share of the time.
    """
    blas = {"blas_threads": blas_threads, "blas_cores": str(blas_cores), "blas_spin_ns": str(130 * MS)}
    return computing(threads=threads, preempted_per_s=100, delayed=delayed, **blas, **more)


def provoked_by_a_thread_of_blas_that_spins():
    return beside_blas()


def provoked_by_threads_of_blas_on_many_cores():
    return beside_blas(threads="16", blas_threads="15", blas_cores=9.0, cores=16.0)


def spared_as_blas_hardly_computes():
    return beside_blas(blas_cores=0.1)


def spared_as_there_are_cores_for_the_threads_of_blas():
    return beside_blas(cores=4.0)


def spared_as_blas_computes_while_pytorch_does_not():
    return beside_blas(delayed=0.01)


def spared_where_a_damaged_file_has_no_threads_of_blas():
    return beside_blas(blas_threads="-1")


def provoked_by_four_threads_for_each_core():
    return computing()


def provoked_by_a_container_that_is_throttled():
    return computing(threads="32", cores=2.5, preempted_per_s=20, throttled=0.8)


def provoked_by_threads_of_the_workers():
    return from_workers(cpu_ms=190, cores=2.0, load=1.0, threads=10)


def provoked_by_threads_that_share_their_cores_with_other_programs():
    return computing(preempted_per_s=455, running=0.46)


def spared_as_there_is_a_core_for_each_thread():
    return computing(threads="2")


def spared_as_a_neighbour_is_busy():
    """Eight other programs want the cores too: each thread loses its core often, for as little as it runs."""
    return computing(threads="2", preempted_per_s=180, running=0.45)


def spared_as_a_neighbour_is_busy_and_the_threads_are_many_but_asleep():
    return computing(threads="8", preempted_per_s=140, running=0.35)


def spared_as_the_threads_hardly_run():
    """Operators too small to be shared out leave the other threads asleep."""
    return computing(preempted_per_s=30)


def spared_as_nobody_was_watched():
    events = stepped(lambda at: [event(EventKind.OP, "aten::convolution", at, 97)], count=10)
    return run_of(events, cores=2.0, facts={"threads": "8"})


def spared_as_the_workers_compute_on_one_thread_each():
    return from_workers(cpu_ms=190, cores=2.0, load=1.0)


def spared_as_there_are_cores_for_the_threads_of_the_workers():
    return from_workers(cpu_ms=190, cores=64.0, load=0.3, threads=10)
