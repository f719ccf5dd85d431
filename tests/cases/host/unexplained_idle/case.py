"""A loop that waits while no thread computes, and waits with a known cause."""

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, host_samples, loader_call, mark, run_of, stepped

REQUEST = {"frame": "labels_of (cell line 4)", "called": "requests.api.get"}


def waits(at):
    return [event(EventKind.OP, "aten::addmm", at + 40, 60)]


def provoked_by_a_service_that_answers_slowly():
    return run_of(stepped(waits), samples=host_samples(600, main=0.6, **REQUEST))


def provoked_beside_an_idle_gpu():
    step = lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at + 60, 40)]  # noqa: E731
    return run_of(stepped(step), samples=host_samples(600, main=0.1, **REQUEST))


def spared_where_the_main_thread_computes():
    return run_of(stepped(waits), samples=host_samples(600, main=1.0, **REQUEST))


def spared_where_batches_are_waited_for():
    def step(at):
        return [loader_call(at, 40, workers=1), event(EventKind.OP, "aten::addmm", at + 40, 60)]

    marks = [mark(100 * number, 40) for number in range(6)]
    return run_of(stepped(step), marks=marks, samples=host_samples(600, main=0.6), loaders=[Loader(workers=1)])


def spared_where_storage_is_read_by_the_main_process():
    def step(at):
        return [loader_call(at, 40), event(EventKind.OP, "aten::addmm", at + 40, 60)]

    marks = [mark(100 * number, 40, cpu_ms=2) for number in range(6)]
    return run_of(stepped(step), marks=marks, samples=host_samples(600, main=0.62), loaders=[Loader(workers=0)])


def spared_where_the_gpu_is_waited_for():
    def step(at):
        return [
            event(EventKind.KERNEL, "ampere_sgemm", at, 60),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + 1, 59),
            event(EventKind.KERNEL, "ampere_sgemm", at + 75, 25),
        ]

    return run_of(stepped(step), samples=host_samples(600, main=0.4))


def spared_where_another_thread_has_the_gil():
    return run_of(stepped(waits), samples=host_samples(600, main=0.6, others=0.5))


def spared_where_there_was_no_core():
    samples = host_samples(600, main=0.6, cpu_frac=1.0)
    samples = [{**each, "preempted": 0.12 * each["at_ns"] / 1e6} for each in samples]
    return run_of(stepped(waits), samples=samples)


def spared_where_thread_times_are_not_told():
    return run_of(stepped(waits), samples=host_samples(600, main=float("nan")))
