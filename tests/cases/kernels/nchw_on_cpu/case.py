"""A convolutional network on a CPU, and networks that channels_last would not help."""

from gpulab.run import Model, Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

IMAGES = {"image_convolutions": 4, "channels_last": False, "channel_group_norms": 0, "calls_view": False}


def training(convolution_ms=10.0, *, trains=True, operator="aten::convolution", models=1, **settings):
    """Steps of 100 ms with four convolutions forward and backward; the rest is elementwise work."""

    def step(at):
        events = []
        for layer in range(4):
            start = at + 20 * layer
            events.append(event(EventKind.OP, operator, start, convolution_ms))
            events.append(event(EventKind.OP, f"{operator}_backward", start + convolution_ms, convolution_ms))
            left_ms = 20 - 2 * convolution_ms
            if left_ms:
                events.append(event(EventKind.OP, "aten::gelu", start + 2 * convolution_ms, left_ms))
        if trains:
            events.append(event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 82, 10))
        return events

    facts = {"kind": "Net", "name": "net", "tensors": 8, "dtypes": ("float32",), "device": "cpu", **IMAGES, **settings}
    return run_of(
        stepped(step),
        models=(Model(**facts),) * models,
        optimizers=(Optimizer(kind="SGD", name="optimizer", tensors=8, device="cpu"),) if trains else (),
        facts={"cpu_bfloat16": "none"},
    )


def provoked_by_convolutions_in_nchw():
    return training()


def provoked_where_many_convolutions_are_depthwise():
    return training(depthwise_frac=0.33)


def provoked_where_the_model_calls_view():
    return training(calls_view=True)


def spared_where_weights_are_in_channels_last():
    return training(channels_last=True)


def spared_where_all_convolutions_are_the_same_in_both_formats():
    return training(channels_last=None)


def spared_where_groups_of_channels_are_normalised():
    return training(channel_group_norms=2)


def spared_where_the_model_is_compiled():
    return training(compiled=True)


def spared_where_convolutions_are_a_small_part():
    return training(convolution_ms=3.0)


def spared_in_inference():
    return training(trains=False)


def spared_where_layers_are_matrix_products():
    return training(operator="aten::addmm")


def spared_where_two_models_train():
    return training(models=2)
