"""Loops that do much besides training, and loops whose other operators belong to the model or the optimizer."""

from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

NODE = "autograd::engine::evaluate_function: "


def passes(at, *, layers=10):
    """A forward pass of 20 ms and a backward pass of 30 ms."""
    forward = [event(EventKind.OP, "aten::addmm", at + 2 * number, 1.9) for number in range(layers)]
    backward = []
    for number in range(layers):
        begin = at + 20 + 3 * number
        backward.append(event(EventKind.OP, f"{NODE}AddmmBackward0", begin, 2.9))
        backward.append(event(EventKind.OP, "aten::mm", begin + 0.1, 2.7))
    return [*forward, *backward]


def update(at, dur_ms, *, count=2):
    share = dur_ms / count
    ops = [event(EventKind.OP, "aten::add_", at + number * share, share * 0.9) for number in range(count)]
    return [event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at, dur_ms), *ops]


def small(at, dur_ms, name="aten::lerp_", *, count=200):
    share = dur_ms / count
    return [event(EventKind.OP, name, at + number * share, share / 2) for number in range(count)]


def provoked_by_averages_of_weights():
    """After the update, a moving average of each parameter."""
    return run_of(stepped(lambda at: [*passes(at), *update(at + 50, 10), *small(at + 60, 40)]))


def provoked_by_clipping_before_the_update():
    return run_of(stepped(lambda at: [*passes(at), *small(at + 50, 30, "aten::norm"), *update(at + 80, 20)]))


def provoked_by_a_target_built_before_the_forward_pass():
    """Nothing of it has a node in the backward pass."""
    return run_of(stepped(lambda at: [*small(at, 30, "aten::select"), *passes(at + 30), *update(at + 80, 20)]))


def provoked_by_a_graph_that_is_built_again_in_every_step():
    """Python code and operators alternate: 15 ms of each."""

    def step(at):
        building = [event(EventKind.OP, "aten::copy_", at + 5 * number + 2.5, 2.5) for number in range(6)]
        return [*building, *passes(at + 30), *update(at + 80, 20)]

    return run_of(stepped(step))


def spared_where_the_operators_are_the_optimizers():
    return run_of(stepped(lambda at: [*passes(at), *update(at + 50, 50, count=200)]))


def spared_where_the_operators_are_the_models():
    """Small operators with nodes of their own."""

    def step(at):
        forward = small(at, 40, "aten::mul", count=100)
        backward = [event(EventKind.OP, f"{NODE}MulBackward0", at + 40 + number * 0.5, 0.4) for number in range(100)]
        return [*forward, *backward, *update(at + 90, 10)]

    return run_of(stepped(step))


def spared_where_zero_grad_lies_between_the_passes():
    def step(at):
        early, late = passes(at)[:10], passes(at + 20)[10:]
        clearing = event(EventKind.ANNOTATION, "Optimizer.zero_grad#SGD.zero_grad", at + 20, 18)
        return [*early, clearing, *small(at + 20, 17, "aten::zero_"), *late, *update(at + 75, 25)]

    return run_of(stepped(step))


def spared_in_a_loop_without_a_backward_pass():
    return run_of(stepped(lambda at: small(at, 90, "aten::mul", count=400)))


def spared_where_a_teacher_runs_before_the_model():
    """Its layers have no node in the backward pass, but it is a model."""

    def step(at):
        teacher = [
            part
            for number in range(10)
            for part in (
                event(EventKind.OP, "aten::linear", at + 3 * number, 2),
                event(EventKind.OP, "aten::relu", at + 3 * number + 2.1, 0.8),
            )
        ]
        return [*teacher, *passes(at + 30), *update(at + 80, 20)]

    return run_of(stepped(step))
