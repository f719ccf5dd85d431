"""Loops whose loss ignores most labels: with an output layer for all positions, for the others only, or a cheap one."""

from dataclasses import replace

from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.cases.host.work_outside_model.case import NODE, update
from tests.support.runs.made_runs import event, launched_kernel, mark, on_gpu, run_of, stepped

LOADER = Loader(
    name="train_loader",
    kind="DataLoader",
    workers=0,
    batch_size=16,
    batches=80,
    ignored_frac=0.85,
)


def op(name, at, dur_ms):
    return event(EventKind.OP, name, at, dur_ms)


def training_step(at, *, head_ms=15.0, loss_ms=5.0, between=()):
    """The body takes 10 ms and, backward, 20 ms; the output layer and the loss twice as long backward as forward.

    `between`: operators that run before the output layer.
    """
    body = [op("aten::linear", at + 3 * number, 2.9) for number in range(3)]
    at += 10
    selections = [op(name, at + 0.1 * number, 0.05) for number, name in enumerate(between)]
    at += 1
    head = [op("aten::linear", at, head_ms), op("aten::addmm", at + 0.1, head_ms - 0.2)]
    at += head_ms
    loss = [
        op("aten::cross_entropy_loss", at, loss_ms),
        op("aten::log_softmax", at + 0.1, loss_ms * 0.8),
        op("aten::nll_loss_nd", at + loss_ms * 0.9, loss_ms * 0.05),
    ]
    at += loss_ms
    backward = [
        op(f"{NODE}NllLossBackward0", at, loss_ms),
        op(f"{NODE}LogSoftmaxBackward0", at + loss_ms, loss_ms),
        op(f"{NODE}AddmmBackward0", at + 2 * loss_ms, 2 * head_ms),
    ]
    at += 2 * (loss_ms + head_ms)
    backward += [op(f"{NODE}AddmmBackward0", at + 7 * number, 6.5) for number in range(3)]
    return [*body, *selections, *head, *loss, *backward, *update(at + 21, 5)]


def trained(loader=LOADER, **step):
    """Ten steps of 100 ms; the output layer and the loss take 60 ms."""
    marks = [mark(100 * number, 0.1) for number in range(10)]
    return run_of(stepped(lambda at: training_step(at + 0.2, **step), count=10), marks=marks, loaders=[loader])


def provoked_by_masked_labels():
    return trained()


def provoked_by_an_ignore_index_of_the_program():
    return trained(replace(LOADER, ignore_index=0))


def on_a_gpu(*, kernel_ms=20.0):
    """Of a 100 ms step, kernels of the output layer and its backward pass take 60 ms."""
    events = []
    for step in range(10):
        at, key = 100 * step, 100 * step
        calls = [("aten::linear", 0.2, 5.0), ("aten::linear", 0.5, kernel_ms), ("aten::cross_entropy_loss", 1.0, 2.0)]
        nodes = [
            ("NllLossBackward0", 1.6, 2.0),
            ("AddmmBackward0", 2.0, 2 * kernel_ms),
            ("AddmmBackward0", 2.5, 87 - 3 * kernel_ms),
        ]
        calls += [(NODE + name, called, dur_ms) for name, called, dur_ms in nodes]
        events.append(event(EventKind.STEP, f"ProfilerStep#{step}", at, 100))
        begun = at + 3.0
        for number, (name, called, dur_ms) in enumerate(calls):
            events.append(op(name, at + called, 0.2))
            times = {"start_ms": begun, "dur_ms": dur_ms, "called_ms": at + called + 0.05}
            events += launched_kernel("gemm", **times, number=key + number, op="aten::mm")
            begun += dur_ms
        events.append(event(EventKind.SYNC, "cudaDeviceSynchronize", at + 3, 96))
    return on_gpu(events, marks=[mark(100 * number, 0.1) for number in range(10)], loaders=[LOADER])


def provoked_on_a_gpu():
    return on_a_gpu()


def spared_where_few_labels_are_ignored():
    return trained(replace(LOADER, ignored_frac=0.2))


def spared_as_the_labels_are_unknown():
    return trained(replace(LOADER, ignored_frac=None))


def spared_where_all_labels_are_ignored():
    return trained(replace(LOADER, ignored_frac=1.0))


def spared_where_the_positions_are_selected():
    return trained(between=("aten::nonzero", "aten::index"))


def spared_where_the_output_layer_is_cheap():
    """Ten classes instead of a vocabulary."""
    return trained(head_ms=1.0, loss_ms=0.5)


def spared_where_the_output_layer_is_cheap_on_a_gpu():
    return on_a_gpu(kernel_ms=1.0)


def spared_with_another_loss():
    def step(at):
        return [each for each in training_step(at + 0.2) if each["name"] not in ("aten::cross_entropy_loss",)]

    marks = [mark(100 * number, 0.1) for number in range(10)]
    events = stepped(lambda at: [{**each} for each in step(at) if each["name"] != "aten::nll_loss_nd"], count=10)
    return run_of(events, marks=marks, loaders=[LOADER])
