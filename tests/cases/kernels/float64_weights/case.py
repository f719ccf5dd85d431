"""Training in double precision, on a CPU and on a GPU, and loops that need it."""

from gpulab.run import Model, Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped


def trained(*, dtypes=("float64",), optimizer="Adam", decomposition=False, busy_ms=18.0, on_gpu=False):
    """Steps of 100 ms with four layers of this length."""

    def step(at):
        if on_gpu:
            return [event(EventKind.KERNEL, "volta_dgemm_128x64_nn", at + 20 * layer, busy_ms) for layer in range(4)]
        events = [event(EventKind.OP, "aten::addmm", at + 20 * layer, busy_ms) for layer in range(4)]
        if decomposition:
            events.append(event(EventKind.OP, "aten::linalg_cholesky_ex", at + 80, 2))
        return [*events, event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 84, 10)]

    return run_of(
        stepped(step),
        models=(Model(kind="Net", name="net", tensors=8, dtypes=dtypes),),
        optimizers=(Optimizer(kind=optimizer, name="optimizer", tensors=8, device="cuda" if on_gpu else "cpu"),),
    )


def provoked_by_a_model_in_double_precision():
    return trained()


def provoked_on_a_gpu():
    return trained(on_gpu=True)


def spared_where_the_weights_are_float32():
    return trained(dtypes=("float32", "float64"))


def spared_where_a_matrix_is_decomposed():
    return trained(decomposition=True)


def spared_where_lbfgs_needs_the_digits():
    return trained(optimizer="LBFGS")


def spared_where_layers_are_a_small_part():
    return trained(busy_ms=4.0)
