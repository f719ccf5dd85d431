"""Other programs on the same cores: not on other cores, not beside a single thread, not where operators are short."""

import numpy as np

from gpulab.run import Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, host_sample, mark, run_of, stepped


def computing(
    *,
    threads="2",
    cores=2.0,
    running=1.0,
    delayed=0.5,
    parallel_ms=8.0,
    operators=12,
    op_ms=8.0,
    is_traced=True,
    machine_cores=None,
):
    """Ten steps of 100 ms on the CPU; `running`: cores that this process gets of those that it may use."""
    samples = [
        host_sample(at, process_cpu_s=at / 1e3 * running, main_delayed_s=at / 1e3 * delayed, cpu_frac=1.0)
        for at in range(0, 1000, 50)
    ]

    def step(at):
        starts = [at + index * 98 / operators for index in range(operators)]
        return [event(EventKind.OP, "aten::mul_", start, op_ms) for start in starts]

    facts = {"threads": threads}
    if parallel_ms is not None:
        facts |= {"parallel_add_ns": str(round(parallel_ms * 1e6)), "serial_add_ns": "12000"}
    marks = [mark(at, 1) for at in range(0, 1000, 100)]
    traced = {"events": stepped(step, count=10)} if is_traced else {"events": [], "marks": marks}
    machine = Machine(cores=machine_cores, cores_allowed=cores)
    return run_of(**traced, samples=samples, machine=machine, facts=facts)


def uneven(slow_ms=50.0, *, parallel_ms=8.0, **more):
    """Untraced steps: forty of 10 ms, then forty that take as long as is said."""
    plain = computing(is_traced=False, parallel_ms=parallel_ms, **more)
    starts = np.cumsum([0.0, *[10.0] * 40, *[slow_ms] * 40])
    samples = [
        host_sample(at, process_cpu_s=at / 1e3, main_delayed_s=at / 1e3 * 0.5, cpu_frac=1.0)
        for at in range(0, int(starts[-1]), 50)
    ]
    marks = [mark(at, 1) for at in starts]
    return run_of(marks=marks, samples=samples, windows=[], machine=plain.machine, facts=plain.facts)


def provoked_by_a_program_that_computes_on_all_cores():
    return computing()


def provoked_by_a_program_that_ended_before_the_measurement():
    return computing(parallel_ms=0.008)


def provoked_in_a_loop_whose_steps_are_too_long_to_be_traced():
    return computing(is_traced=False)


def provoked_by_programs_that_leave_twelve_of_sixteen_cores():
    return computing(threads="16", cores=16.0, running=12.0, delayed=0.4)


def provoked_in_a_loop_in_which_threads_wait_in_every_second_step_only():
    return uneven()


def spared_as_untraced_steps_are_alike():
    return uneven(slow_ms=12.0, parallel_ms=0.008)


def spared_as_uneven_steps_run_on_one_thread():
    return uneven(threads="1")


def spared_as_there_is_one_thread():
    return computing(threads="1")


def spared_as_the_other_programs_leave_a_core_for_each_thread():
    return computing(threads="2", cores=4.0, running=2.0)


def spared_as_the_main_thread_has_a_core():
    return computing(delayed=0.05)


def spared_as_this_process_may_use_two_of_sixteen_cores():
    """Other programs run on the other cores; the main thread waits for a thread of its own."""
    return computing(machine_cores=16)


def spared_as_no_other_program_runs():
    return computing(running=2.0)


def spared_as_nothing_shows_that_operators_wait():
    """Without a trace, and with a fast addition, the time of the loop may have any cause."""
    return computing(is_traced=False, parallel_ms=0.008)


def spared_as_operators_are_short():
    """They run on one thread, which waits for nobody."""
    return computing(op_ms=0.15)
