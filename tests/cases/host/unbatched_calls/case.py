"""A model that runs for one item at a time, and loops that only look like it."""

from gpulab.run import Loader, Model, Optimizer
from gpulab.tables import EventKind, MarkKind
from tests.support.runs.made_runs import event, mark, run_of, stepped

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
STEPS = 6


def passes(count, *, layers=2, with_gradient=None, call_ms=0.01, fetches=0, loop_op="aten::linear"):
    """Steps of 100 ms with `count` forward passes of a model, and the backward pass of `with_gradient` of them."""
    total = count * layers

    def step(at):
        events = [event(EventKind.OP, loop_op, at + n * 60 / total, call_ms) for n in range(total)]
        nodes = total if with_gradient is None else with_gradient * layers
        events += [event(EventKind.OP, NODE, at + 60 + n * 30 / total, 0.01) for n in range(nodes)]
        return [*events, event(EventKind.ANNOTATION, "Optimizer.step#Adam.step", at + 92, 5)]

    marks = []
    for number in range(STEPS if fetches else 0):
        marks += [mark(100 * number + 90 * n / fetches, 0.1) for n in range(fetches)]
        marks.append(mark(100 * number + 97, 0.0, kind=MarkKind.OPTIMIZER))
    return run_of(
        stepped(step, count=STEPS),
        marks=marks,
        loaders=[Loader(workers=0, batch_size=4)] if fetches else (),
        models=(Model(kind="Policy", name="policy", tensors=2 * layers),),
        optimizers=(Optimizer(kind="Adam", name="optimizer", tensors=2 * layers),),
    )


def provoked_by_a_policy_that_acts_once_per_call():
    return passes(100)


def provoked_by_cells_of_a_recurrent_layer():
    return passes(250, layers=1, loop_op="aten::lstm_cell")


def provoked_by_time_steps_of_a_recurrent_layer():
    return passes(250, layers=1, loop_op="aten::lstm", call_ms=0.09)


def spared_where_two_images_go_through_one_network():
    return passes(2, layers=20)


def spared_where_a_frozen_network_runs_often():
    return passes(100, with_gradient=1)


def spared_by_gradient_accumulation():
    return passes(16, layers=10, fetches=16)


def spared_where_calls_do_enough_work():
    return passes(40, call_ms=0.7)


def spared_by_a_deep_model():
    return passes(1, layers=200)
