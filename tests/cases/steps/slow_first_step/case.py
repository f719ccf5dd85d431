"""A first step that is far longer than the others, and beginnings that are no matter."""

from gpulab.run import Loader
from gpulab.tables import STALLS, StallKind
from tests.support.runs.made_runs import mark, rows, run_of, stall


def marked(step_ms, **more):
    marks, at = [], 0.0
    for length in [*step_ms, 1.0]:
        marks.append(mark(at, 0.5))
        at += length
    return run_of(marks=marks, loaders=[Loader(workers=0)], windows=[], **more)


def provoked_by_libraries_that_are_loaded():
    return marked([900.0, *[20.0] * 40])


def provoked_by_a_compilation():
    compiled = rows(STALLS, [stall(5, 1900, "train_step (a.py:1)", StallKind.COMPILE)])
    return marked([2000.0, *[20.0] * 40], stall_rows=compiled)


def spared_by_a_first_step_of_twice_the_time():
    return marked([40.0, *[20.0] * 40])


def spared_by_a_long_run():
    return marked([200.0, *[20.0] * 400])


def spared_by_steps_that_are_all_long():
    return marked([900.0] * 20)


def spared_by_a_long_step_in_the_middle():
    return marked([*[20.0] * 20, 900.0, *[20.0] * 20])
