"""Python code in the loop, and what only looks like it."""

from gpulab.tables import STALLS, EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, host_samples, loader_call, rows, run_of, stall, stepped


def kernel(at, dur):
    return event(EventKind.KERNEL, "ampere_sgemm", at, dur)


def outside(at):
    """Half of each step is outside PyTorch."""
    return [kernel(at + 50, 50)]


def provoked_by_preprocessing_in_the_loop():
    return run_of(stepped(outside), samples=host_samples(600, frame="preprocess (cell line 4)"))


def provoked_by_recorded_frames():
    def step(at):
        return [event(EventKind.PYTHON, "video.py(98): preprocess", at, 49), kernel(at + 50, 50)]

    return run_of(stepped(step))


def provoked_beside_a_smaller_share_of_garbage():
    stalls = rows(STALLS, [stall(100 * step + 1, 10) for step in range(6)])
    return run_of(stepped(outside), samples=host_samples(600), stall_rows=stalls)


def spared_where_the_data_loader_builds_the_batches():
    return run_of(stepped(lambda at: [loader_call(at, 50), kernel(at + 50, 50)]), loaders=[NO_WORKERS])


def spared_where_operators_are_dispatched():
    def step(at):
        pieces = [event(EventKind.OP, "aten::add", at + number * 0.25, 0.15) for number in range(400)]
        return [*pieces, *(kernel(at + number * 0.25, 0.005) for number in range(400))]

    return run_of(stepped(step))


def spared_where_garbage_is_collected_all_that_time():
    stalls = rows(STALLS, [stall(100 * step + 1, 48) for step in range(6)])
    return run_of(stepped(outside), samples=host_samples(600), stall_rows=stalls)


def spared_where_nothing_ran_in_that_time():
    return run_of(stepped(outside), samples=host_samples(600, main=0.5, frame="fetch (cell line 4)"))


def spared_where_another_thread_had_the_gil():
    samples = host_samples(600, main=0.5, others=0.5, frame="train (cell line 4)", others_frame="count (cell line 9)")
    return run_of(stepped(outside), samples=samples)


def spared_where_all_cores_were_busy_and_no_line_is_known():
    return run_of(stepped(outside), samples=host_samples(600, main=0.5, cpu_frac=1.0, preempted=0.0))
