"""Modules that computed outputs again in the watched steps, and programs that only look like it."""

from gpulab.run import RepeatedInputs
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped


def training(*repeated):
    """Steps of 100 ms of one long operator and an optimizer."""

    def step(at):
        return [
            event(EventKind.OP, "aten::addmm", at, 95),
            event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 97, 1),
        ]

    return run_of(stepped(step), repeated_inputs=repeated)


def work(step_frac, calls=11, **more):
    return RepeatedInputs(
        kind="Linear", name="net.key", location="forward (net.py:31)", calls=calls, step_frac=step_frac, **more
    )


def provoked_by_a_projection_in_a_decoding_loop():
    return training(work(0.12, with_gradient=True))


def provoked_by_a_second_pass_for_the_accuracy():
    return training(work(0.2, calls=1))


def provoked_by_rows_that_are_repeated_before_an_encoder():
    return training(work(0.15, calls=1, distinct_frac=0.01, with_gradient=True))


def provoked_by_the_more_expensive_of_two_modules():
    return training(work(0.03, with_gradient=True), work(0.3))


def spared_where_no_module_repeats_its_work():
    return training()


def spared_where_the_repeated_work_is_small():
    return training(work(0.03, with_gradient=True))


def spared_where_small_work_has_no_backward_pass():
    return training(work(0.08))


def spared_where_the_share_is_unknown():
    return training(work(None))


def spared_where_a_damaged_file_has_an_impossible_share():
    return training(work(7.0))
