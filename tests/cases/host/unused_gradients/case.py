"""Backward passes that compute gradients for more parameters than the optimizers update, and for as many."""

from gpulab.run import Model, Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

NODE = "autograd::engine::evaluate_function: "


def backward(accumulated, *tensors, passes=1, length_ms=40.0):
    """Steps of 100 ms with backward passes; the optimizers update `tensors` parameters."""

    def step(at):
        events = [event(EventKind.OP, "aten::addmm", at, 45)]
        for number in range(passes):
            start, each_ms = at + 46 + number * 50 / passes, length_ms / passes / (accumulated + 1)
            events.append(event(EventKind.OP, "aten::mse_loss", start - 0.5, 0.4))
            events.append(event(EventKind.OP, f"{NODE}AddmmBackward0", start, each_ms))
            events += [
                event(EventKind.OP, f"{NODE}torch::autograd::AccumulateGrad", start + (n + 1) * each_ms, each_ms)
                for n in range(accumulated)
            ]
        return [*events, event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 97, 1)]

    return run_of(
        stepped(step),
        models=(Model(kind="Net", name="net", tensors=tensors[0] if tensors else None),),
        optimizers=tuple(Optimizer(kind="SGD", name="optimizer", tensors=number) for number in tensors),
    )


def provoked_by_a_backbone_that_is_not_frozen():
    return backward(62, 2)


def provoked_by_a_teacher_without_no_grad():
    return backward(40, 14)


def spared_where_all_gradients_are_used():
    return backward(62, 62)


def spared_where_two_optimizers_share_the_gradients():
    return backward(62, 30, 32)


def spared_by_the_passes_of_gradient_accumulation():
    return backward(20, 20, passes=4)


def spared_where_inputs_need_gradients():
    return backward(21, 20)


def spared_where_the_backward_pass_is_a_small_part():
    return backward(62, 2, length_ms=5.0)


def spared_where_the_optimizers_are_unknown():
    return backward(62)
