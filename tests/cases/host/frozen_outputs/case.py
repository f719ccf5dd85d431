"""Forward passes of frozen models, and of models that only look like it."""

from gpulab.run import FrozenModel, Loader, Model, Optimizer
from gpulab.tables import EventKind, MarkKind
from tests.support.runs.made_runs import event, mark, run_of, stepped

NODE = "autograd::engine::evaluate_function: "
OPS = {"c": ("aten::conv2d", "ConvolutionBackward0"), "l": ("aten::linear", "AddmmBackward0")}
STEPS = 8


def loop(calls, trained, *frozen, call_ms=6.0, epochs=2, iterable=False):
    """Steps of 100 ms with these calls of layers, of which `trained` have a node in the backward pass."""

    def step(at):
        events = [event(EventKind.LOADER, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 0.5)]
        events += [event(EventKind.OP, OPS[letter][0], at + 1 + n * 6, call_ms) for n, letter in enumerate(calls)]
        begin = at + 1 + 6 * len(calls)
        events.append(event(EventKind.OP, "aten::nll_loss", begin, 0.2))
        events += [
            event(EventKind.OP, f"{NODE}{OPS[letter][1]}", begin + 0.3 + n, 0.9)
            for n, letter in enumerate(trained[::-1])
        ]
        return [*events, event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 97, 1)]

    marks = []
    for number in range(STEPS):
        marks.append(mark(100 * number, 0.5, epoch=number * epochs // STEPS))
        marks.append(mark(100 * number + 98, 0.0, kind=MarkKind.OPTIMIZER))
    return run_of(
        stepped(step, count=STEPS),
        marks=marks,
        loaders=[Loader(workers=0, batch_size=4, iterable=iterable)],
        models=(Model(kind="Net", name="net", tensors=2 * len(trained)),),
        optimizers=(Optimizer(kind="SGD", name="optimizer", tensors=2 * len(trained)),),
        frozen_models=tuple(
            FrozenModel(kind="Net", name=f"part{n}", tensors=2 * len(layers), layers=layers, depends_on_batch=False)
            for n, layers in enumerate(frozen)
        ),
    )


def provoked_by_a_frozen_backbone():
    return loop("ccccccccll", "ll", "cccccccc")


def provoked_by_a_teacher_after_the_student():
    return loop("ccl" + "ccccccl", "ccl", "ccccccl")


def provoked_by_two_frozen_encoders():
    return loop("cccc" + "lll" + "ll", "ll", "cccc", "lll")


def provoked_by_a_teacher_that_runs_twice():
    return loop("lll" * 2 + "cl", "cl", "lll")


def spared_where_all_layers_are_trained():
    return loop("ccccccccll", "ccccccccll", "cccccccc")


def spared_where_the_trained_model_itself_runs_without_gradients():
    return loop("ccl" + "ccl", "ccl", "ccccc")


def spared_where_no_model_is_frozen():
    return loop("ccccccccll", "ll")


def spared_where_frozen_layers_lie_between_trained_ones():
    return loop("clclclclcl", "lllll", "ccccc")


def spared_where_it_takes_little_time():
    return loop("ccccccccll", "ll", "cccccccc", call_ms=0.5)


def spared_where_the_data_is_a_stream():
    return loop("ccccccccll", "ll", "cccccccc", iterable=True)
