"""Collections of garbage in the loop, and what only looks like it."""

from gpulab.tables import STALLS, EventKind
from tests.support.runs.made_runs import event, host_samples, rows, run_of, stall, stepped


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
