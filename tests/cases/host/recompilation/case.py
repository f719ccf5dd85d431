"""Recompilation of a function, and compilations that happen once."""

from gpulab.tables import STALLS, EventKind, StallKind
from tests.support.runs.made_runs import event, host_samples, rows, run_of, stall, stepped

AGAIN = "forward (model.py:12), again: tensor 'x' size mismatch at index 1. expected 40, actual 41"


def compiled(stalls, count=12):
    step = lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at + 60, 40)]  # noqa: E731
    compilations = [stall(at, dur, reason, StallKind.COMPILE) for at, dur, reason in stalls]
    return run_of(stepped(step, count=count), samples=host_samples(100 * count), stall_rows=rows(STALLS, compilations))


def provoked_by_another_size_in_every_step():
    return compiled([(100 * step + 2, 55, AGAIN) for step in range(12)])


def provoked_by_another_size_now_and_then():
    return compiled([(100 * step + 2, 55, AGAIN) for step in (0, 4, 7, 10)])


def provoked_by_something_else_that_changes():
    reason = "train_step (cell line 3), again: L['alpha'] == 0.5"
    return compiled([(100 * step + 2, 55, reason) for step in range(12)])


def spared_by_the_first_compilations():
    return compiled([(2, 90, "forward (model.py:12)"), (102, 60, AGAIN), (202, 60, AGAIN)])


def spared_by_one_more_for_the_last_batch():
    return compiled([(2, 90, "forward (model.py:12)"), (902, 60, AGAIN)])


def spared_without_any():
    return compiled([])
