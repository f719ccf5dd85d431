"""Backward passes that run forward operators again, and those that do not."""

from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

NODE = "autograd::engine::evaluate_function: "


def op(name, start_ms, dur_ms, thread=0):
    return event(EventKind.OP, name, start_ms, dur_ms, thread=thread)


def forward(at, count=4):
    return [op("aten::linear", at + 10 * number, 9) for number in range(count)]


def backward(at, *, again, name="AddmmBackward0", thread=0, count=4):
    """Nodes of 15 ms, the first 6 ms of which are a forward operator if it runs `again`."""
    events = []
    for number in range(count):
        start = at + 15 * number
        events += [op(NODE + name, start, 15, thread), op(name, start + 0.1, 14.8, thread)]
        events += [op("aten::linear", start + 0.2, 6, thread)] if again else []
        events += [op("aten::mm", start + 6.5, 8, thread)]
    return events


def provoked_by_a_forward_pass_within_nodes():
    return run_of(stepped(lambda at: [*forward(at), *backward(at + 40, again=True)]))


def provoked_by_the_older_way_of_checkpointing():
    """One node per checkpoint; the nodes of its gradient lie within."""

    def step(at):
        inner = backward(at + 70, again=False, count=1)
        outer = [op(NODE + "CheckpointFunctionBackward", at + 40, 55), op("aten::linear", at + 41, 25)]
        return [*forward(at), *outer, *inner]

    return run_of(stepped(step))


def provoked_by_a_backward_pass_in_its_own_thread():
    return run_of(stepped(lambda at: [*forward(at), *backward(at + 40, again=True, thread=1)]))


def spared_by_an_ordinary_backward_pass():
    return run_of(stepped(lambda at: [*forward(at), *backward(at + 40, again=False)]))


def spared_by_a_second_forward_pass_outside_the_backward_pass():
    return run_of(stepped(lambda at: [*forward(at, 2), *backward(at + 20, again=False, count=3), *forward(at + 66, 3)]))
