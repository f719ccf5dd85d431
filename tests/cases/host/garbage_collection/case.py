"""Collections of garbage in the loop, and what only looks like it."""

from gpulab.run import Loader
from gpulab.tables import STALLS, EventKind, MarkKind
from tests.support.runs.made_runs import event, host_samples, mark, rows, run_of, stall, stepped


def kernel(at, dur):
    return event(EventKind.KERNEL, "ampere_sgemm", at, dur)


def collected(stalls, step=lambda at: [kernel(at + 50, 50)], count=10):
    return run_of(stepped(step, count=count), samples=host_samples(100 * count), stall_rows=rows(STALLS, stalls))


def provoked_by_a_call_in_every_step():
    return collected([stall(100 * step + 5, 40, "gc.collect() in train (cell line 7)") for step in range(10)])


def provoked_by_python_itself_now_and_then():
    return collected([stall(305, 42), stall(605, 43)])


def spared_by_young_objects_that_take_no_time():
    return collected([stall(100 * step + 5, 0.3, "generation 0") for step in range(10)])


def spared_where_the_gpu_works_meanwhile():
    step = lambda at: [kernel(at, 98)]  # noqa: E731
    return collected([stall(100 * number + 5, 40) for number in range(10)], step)


def spared_in_the_first_step_and_after_the_last():
    return collected([stall(5, 40), stall(995, 300)])


def spared_where_the_loop_itself_takes_the_time():
    return collected([])


def folds(dur_ms=60, what="gc.collect() in cell line 9", *, loaders=3, first=0):
    """Three folds of ten steps of 10 ms, each with a DataLoader of its own; after each, a collection."""
    marks, stalls = [], []
    for fold in range(3):
        for step in range(10):
            at = 200 * fold + 10 * step
            marks.append(mark(at, 0.1, loader=fold % loaders, epoch=fold // loaders))
            marks.append(mark(at + 9, 0.0, kind=MarkKind.OPTIMIZER))
        marks.append(mark(200 * fold + 100, 0.1, loader=fold % loaders, epoch=fold // loaders, yielded=False))
        if fold >= first:
            stalls.append(stall(200 * fold + 120, dur_ms, what))
    made = stepped(lambda at: [kernel(at + 1, 8)], count=10, step_ms=10.0)
    names = [Loader(name="loader", workers=0, batches=10) for _ in range(loaders)]
    return run_of(made, marks=marks, loaders=names, stall_rows=rows(STALLS, stalls), windows=[(0, 100)])


def provoked_by_a_call_after_each_fold():
    return folds()


def spared_between_the_epochs_of_one_loader():
    return folds(loaders=1)


def spared_as_python_collects_after_each_fold():
    return folds(what="generation 2")


def spared_by_short_calls_after_each_fold():
    return folds(dur_ms=10)


def spared_by_one_call_after_the_training():
    return folds(first=2)
