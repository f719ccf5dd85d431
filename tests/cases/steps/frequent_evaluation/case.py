"""Evaluations that take half of the run, or a tenth; with a DataLoader, and by their code alone."""

from gpulab.tables import EventKind, MarkKind
from tests.cases.data.slow_evaluation.case import evaluated
from tests.support.runs.made_runs import event, host_sample, mark, run_of

STEP_MS = 20.0


def estimated(
    *,
    evaluation_ms=300.0,
    every=10,
    word="estimate_loss",
    training_word=None,
    sample_ms=50.0,
    ran="aten::addmm",
    recorded=True,
    pauses=(),
):
    """Forty updates 20 ms apart, without a DataLoader; before every tenth one, a function evaluates the model.

    With `recorded`, the profiler is on from the second evaluation to the next update, and `ran` is the operator of each
    forward pass in it.
    """
    marks, samples, events, windows, busy, at = [], [], [], [], [], 0.0
    for number in range(40):
        if number and number % every == 0 and evaluation_ms:
            busy.append((at, at + evaluation_ms))
            at += evaluation_ms
        at += STEP_MS
        marks.append(mark(at, 0.0, kind=MarkKind.OPTIMIZER))
    time_ms = 0.0
    while time_ms < at:
        evaluates = any(start <= time_ms < end for start, end in busy)
        samples.append(host_sample(time_ms, evaluation=word if evaluates else training_word))
        time_ms += sample_ms
    if recorded and len(busy) > 1:
        start, end = busy[1]
        windows = [(start, end + STEP_MS)]
        events = [event(EventKind.OP, ran, start + 10.0 * n, 8.0) for n in range(int(evaluation_ms / 10))]
        events.append(event(EventKind.OP, "aten::addmm", end + 1, 5.0))
        events.append(
            event(EventKind.OP, "autograd::engine::evaluate_function: AddmmBackward0", end + 8, 5.0, thread=1)
        )
    return run_of(events, marks=marks, samples=samples, windows=windows, pauses=pauses)


def provoked_by_long_evaluations():
    return evaluated(fetch_ms=1.0, compute_ms=20.0)


def provoked_by_a_function_that_evaluates():
    return estimated()


def provoked_by_code_in_eval_mode():
    return estimated(word="eval mode")


def provoked_by_a_function_of_which_no_event_was_recorded():
    return estimated(recorded=False)


def spared_as_evaluations_are_short():
    return evaluated(fetch_ms=0.5, compute_ms=2.0)


def spared_as_the_other_loader_is_trained_on():
    return evaluated(fetch_ms=1.0, compute_ms=20.0, updates=False)


def spared_as_each_training_step_runs_in_that_function():
    """A test function around the loop, or a model that stays in eval mode."""
    return estimated(training_word="estimate_loss")


def spared_as_the_function_runs_no_model():
    return estimated(ran="aten::randperm")


def spared_as_other_code_runs_every_ten_steps():
    """A rollout: forward passes without gradient in code that neither evaluates by its name nor in eval mode."""
    return estimated(word=None)
