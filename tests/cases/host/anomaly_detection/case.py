"""Backward passes with a check for NaN after each node, and programs that check something else."""

from gpulab.run import Model, Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def loop(*, checks=1.0, after=0):
    """Steps of 100 ms with ten nodes; `checks`: of their outputs, per node; `after`: checks by the program itself."""

    def step(at):
        events = [event(EventKind.OP, "aten::addmm", at + 1 + 4 * n, 3) for n in range(10)]
        events.append(event(EventKind.OP, "aten::nll_loss", at + 42, 0.5))
        for n in range(10):
            events.append(event(EventKind.OP, NODE, at + 43 + 4 * n, 3.9))
            if n < 10 * checks:
                events.append(event(EventKind.OP, "aten::isnan", at + 45 + 4 * n, 1))
                events.append(event(EventKind.OP, "aten::any", at + 46 + 4 * n, 0.5))
        events += [event(EventKind.OP, "aten::isnan", at + 84 + n / 2, 0.4) for n in range(after)]
        return [*events, event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 97, 1)]

    return run_of(
        stepped(step, count=8),
        models=(Model(kind="Net", name="net", tensors=20),),
        optimizers=(Optimizer(kind="SGD", name="optimizer", tensors=20),),
    )


def provoked_by_a_check_of_every_node():
    return loop()


def spared_where_nothing_is_checked():
    return loop(checks=0.0)


def spared_where_few_nodes_compute_isnan():
    return loop(checks=0.2)


def spared_where_the_program_checks_its_gradients():
    return loop(checks=0.0, after=20)
