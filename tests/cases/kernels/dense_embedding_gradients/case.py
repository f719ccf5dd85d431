"""Loops with embedding tables: large and small ones, shared ones, and batches that use most rows."""

from gpulab.run import Loader, Model, Optimizer
from gpulab.tables import EventKind, MarkKind
from tests.support.runs.made_runs import event, mark, run_of, stepped

NODE = "autograd::engine::evaluate_function: "
STEPS = 8


def loop(*, elements=2_000_000, updated=2_100_000, rows=40_000, batch_bytes=6_000, backward_ms=30.0, exact=True):
    """Steps of 100 ms with the backward pass of an embedding and an optimizer step of 30 ms."""

    def step(at):
        return [
            event(EventKind.OP, "aten::embedding", at + 1, 2),
            event(EventKind.OP, "aten::addmm", at + 4, 20),
            event(EventKind.OP, f"{NODE}AddmmBackward0", at + 30, 5),
            event(EventKind.OP, f"{NODE}EmbeddingBackward0", at + 36, backward_ms),
            event(EventKind.OP, "aten::embedding_dense_backward", at + 36.1, backward_ms - 0.2),
            event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 68, 30),
            event(EventKind.OP, "aten::add_", at + 68.1, 29.5),
        ]

    marks = []
    for number in range(STEPS):
        marks.append(mark(100 * number, 0.5))
        marks.append(mark(100 * number + 98, 0.0, kind=MarkKind.OPTIMIZER))
    return run_of(
        stepped(step, count=STEPS),
        marks=marks,
        loaders=[Loader(workers=0, batch_size=256, batch_bytes=batch_bytes)],
        models=(Model(kind="Net", name="net", tensors=3, embedding_elements=elements, embedding_rows=rows),),
        optimizers=(
            Optimizer(kind="SGD", name="optimizer", tensors=3, elements=updated, device="cpu", accepts_sparse=exact),
        ),
    )


def provoked_by_a_large_table_with_sgd():
    return loop()


def provoked_by_a_large_table_with_adam():
    return loop(exact=False)


def spared_where_tables_are_small():
    return loop(elements=100_000, updated=200_000, rows=2_000)


def spared_where_a_batch_uses_most_rows():
    return loop(batch_bytes=160_000)


def spared_where_another_layer_shares_the_table():
    return loop(elements=0)


def spared_where_most_of_the_elements_are_elsewhere():
    return loop(elements=600_000, updated=20_000_000, backward_ms=1.0)


def spared_where_the_size_of_the_tables_is_unknown():
    return loop(elements=None)
