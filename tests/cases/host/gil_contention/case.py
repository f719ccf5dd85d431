"""Another Python thread that runs while the loop wants to, and what only looks like it."""

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, host_samples, loader_call, mark, run_of, stepped

BESIDE = {"frame": "train (cell line 9)", "others_frame": "count_words (cell line 3)"}


def gaps(at):
    """On the CPU: ten operators, and after each of them 5 ms until the interpreter is free."""
    return [event(EventKind.OP, "aten::addmm", at + 10 * number, 5) for number in range(10)]


def provoked_by_a_thread_that_counts():
    return run_of(stepped(gaps), samples=host_samples(600, main=0.5, others=0.5, **BESIDE))


def provoked_beside_a_gpu():
    def step(at):
        return [event(EventKind.KERNEL, "ampere_sgemm", at + 10 * number, 4) for number in range(10)]

    return run_of(stepped(step), samples=host_samples(600, main=0.4, others=0.6, **BESIDE))


def spared_where_the_loop_itself_computes():
    return run_of(stepped(gaps), samples=host_samples(600, main=1.0, others=0.3, **BESIDE))


def spared_where_the_other_thread_sleeps():
    return run_of(stepped(gaps), samples=host_samples(600, main=0.5, others=0.01, **BESIDE))


def spared_where_threads_of_operators_compute():
    """OpenMP threads are no Python threads: they are in no sample, and the loop's thread computes with them."""
    return run_of(stepped(gaps), samples=host_samples(600, main=1.0, others=0.0, process_cpu_s=1.0))


def spared_where_other_programs_take_the_cores():
    """Taken off its core 150 times a second on full cores: that explains half a second of absence."""
    samples = host_samples(600, main=0.5, others=0.5, cpu_frac=1.0, **BESIDE)
    samples = [{**each, "preempted": 0.15 * each["at_ns"] / 1e6} for each in samples]
    return run_of(stepped(gaps), samples=samples)


def spared_where_batches_of_workers_are_waited_for():
    def step(at):
        return [loader_call(at, 50, workers=2), event(EventKind.OP, "aten::addmm", at + 50, 50)]

    marks = [mark(100 * number, 50, process_ms=100 * number) for number in range(6)]
    samples = host_samples(600, main=0.5, others=0.5, **BESIDE)
    return run_of(stepped(step), marks=marks, samples=samples, loaders=[Loader(workers=2)])


def spared_where_thread_times_are_not_told():
    return run_of(stepped(gaps), samples=host_samples(600, main=float("nan"), others=float("nan"), **BESIDE))


def provoked_by_a_thread_that_runs_no_function_of_the_user():
    beside = {"frame": "train (cell line 9)", "others_frame": "Thread-5"}
    return run_of(stepped(gaps), samples=host_samples(600, main=0.5, others=0.5, **beside))
