"""A network with dropout that trains on a CPU, and networks whose dropout is quick, small or inside an operator."""

from gpulab.run import DropoutTimes, Model, Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

MEASURED = DropoutTimes(calls=2, bernoulli_ns=30_000_000, uniform_ns=10_000_000)


def training(dropout_ms=15.0, *, times=MEASURED, trains=True, within=None, compiled=False, name="net", models=1):
    """Steps of 100 ms with two calls of dropout; `within`: an operator that contains them."""

    def step(at):
        events = [event(EventKind.OP, "aten::addmm", at, 30)]
        for start in (at + 30, at + 55):
            if within:
                events.append(event(EventKind.OP, within, start - 1, dropout_ms + 2))
            events.append(event(EventKind.OP, "aten::dropout", start, dropout_ms))
            events.append(event(EventKind.OP, "aten::bernoulli_", start + 0.1, dropout_ms - 0.2))
        if trains:
            events.append(event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 82, 10))
        return events

    model = Model(kind="Net", name=name, tensors=4, dtypes=("float32",), device="cpu", compiled=compiled)
    return run_of(
        stepped(step),
        models=(model,) * models,
        optimizers=(Optimizer(kind="SGD", name="optimizer", tensors=4, device="cpu"),) if trains else (),
        dropout_times=times,
        facts={"cpu_bfloat16": "none"},
    )


def provoked_by_dropout():
    return training()


def provoked_where_no_variable_holds_the_model():
    return training(name=None)


def spared_where_another_mask_takes_as_long():
    return training(times=DropoutTimes(calls=2, bernoulli_ns=30_000_000, uniform_ns=29_000_000))


def spared_where_nothing_was_timed():
    return training(times=None)


def spared_where_dropout_is_a_small_part():
    return training(dropout_ms=2.0)


def spared_within_attention():
    return training(within="aten::scaled_dot_product_attention")


def spared_in_inference():
    return training(trains=False)
