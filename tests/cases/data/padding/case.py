"""Batches of tokens with much padding, with little, or with padding that costs nothing."""

from dataclasses import replace

from gpulab.run import Loader, Model
from gpulab.tables import EventKind
from tests.cases.host.work_outside_model.case import passes, update
from tests.support.runs.made_runs import event, launched_kernel, mark, on_gpu, run_of, stepped

LOADER = Loader(
    name="train_loader",
    kind="DataLoader",
    workers=0,
    batch_size=16,
    pin_memory=False,
    batch_sampler="BatchSampler",
    batches=80,
    padding_frac=0.6,
    padding_to_longest_frac=0.0,
    row_length=64.0,
    can_be_cut=False,
)
FIXED_LENGTH = replace(LOADER, padding_frac=0.8, padding_to_longest_frac=0.7, row_length=128.0, can_be_cut=True)


def trained(loader=LOADER, *, passes_at=0, make_passes=passes, **more):
    """Ten steps of 100 ms: forward and backward take 50 ms, the optimizer 10 ms."""
    marks = [mark(100 * step, 0.1) for step in range(10)]
    events = stepped(lambda at: [*make_passes(at + passes_at), *update(at + 60, 10)], count=10)
    return run_of(events, marks=marks, loaders=[loader], **more)


def provoked_by_different_lengths():
    return trained()


def provoked_by_a_fixed_length():
    return trained(FIXED_LENGTH)


def provoked_with_a_compiled_model():
    return trained(models=(Model(kind="Tagger", compiled=True),))


def packed(at, recurrent_ms=20.0):
    """A recurrent layer takes this long of a forward pass of 20 ms."""
    packing = event(EventKind.OP, "aten::_pack_padded_sequence", at, 0.1)
    return [packing, event(EventKind.OP, "aten::lstm", at + 0.1, recurrent_ms), *passes(at + 0.1)]


def provoked_by_the_time_steps_of_packed_sequences():
    return trained(make_passes=packed)


def spared_where_other_layers_than_those_with_packed_sequences_take_the_time():
    return trained(make_passes=lambda at: packed(at, recurrent_ms=4.0))


def spared_where_packing_leaves_out_a_fixed_length():
    return trained(FIXED_LENGTH, make_passes=packed)


def on_a_gpu(loader=LOADER, *, kernel_ms=6.0):
    """The host launches ten kernels of the passes and one of the optimizer, then waits until they end."""
    events = []
    for step in range(10):
        at, key = 100 * step, 100 * step
        events.append(event(EventKind.STEP, f"ProfilerStep#{step}", at, 100))
        for number in range(10):
            is_forward, called = number < 5, at + 0.1 * number
            if not is_forward:
                events.append(event(EventKind.OP, "autograd::engine::evaluate_function: AddmmBackward0", called, 0.05))
            op = "aten::addmm" if is_forward else "aten::mm"
            times = {"start_ms": at + 1 + kernel_ms * number, "dur_ms": kernel_ms, "called_ms": called + 0.01}
            events += launched_kernel("gemm", **times, number=key + number, op=op)
        events.append(event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 1.2, 0.3))
        times = {"start_ms": at + 1 + 10 * kernel_ms, "dur_ms": 99 - 10 * kernel_ms, "called_ms": at + 1.3}
        events += launched_kernel("add", **times, number=key + 50)
        events.append(event(EventKind.SYNC, "cudaDeviceSynchronize", at + 2, 98))
    return on_gpu(events, marks=[mark(100 * step, 0.1) for step in range(10)], loaders=[loader])


def provoked_on_a_gpu():
    return on_a_gpu()


def spared_as_a_quarter_is_padding():
    return trained(replace(LOADER, padding_frac=0.25))


def spared_as_the_padding_is_unknown():
    return trained(replace(LOADER, padding_frac=None))


def spared_as_forward_and_backward_are_short():
    """Ten of a hundred milliseconds."""

    def short(at):
        return [
            {
                **each,
                "start_ns": at * 1_000_000 + (each["start_ns"] - at * 1_000_000) // 5,
                "dur_ns": each["dur_ns"] // 5,
            }
            for each in passes(at)
        ]

    return trained(make_passes=short)


def spared_as_the_kernels_are_short():
    return on_a_gpu(kernel_ms=0.5)


def spared_as_only_the_other_loader_pads():
    """The evaluation has the padding, and the training has none."""
    marks = [mark(100 * step, 0.1) for step in range(10)] + [mark(999, 0.1, loader=1)]
    events = stepped(lambda at: [*passes(at), *update(at + 60, 10)], count=10)
    return run_of(events, marks=marks, loaders=[replace(LOADER, padding_frac=0.0), LOADER])


def spared_in_a_loop_without_a_backward_pass():
    return trained(make_passes=lambda at: passes(at)[:10])
