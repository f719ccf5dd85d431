"""Modules that multiply with dense matrices of mostly zeros, and programs that only look like it."""

from gpulab.run import SparseOperand
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

MS = 1_000_000


def training(*operands):
    """Steps of 100 ms of one long product and an optimizer."""

    def step(at):
        return [
            event(EventKind.OP, "aten::mm", at, 95),
            event(EventKind.ANNOTATION, "Optimizer.step#Adam.step", at + 97, 1),
        ]

    return run_of(stepped(step), sparse_operands=operands)


def operand(dense_ms, sparse_ms, **more):
    described = {"name": "model.gc1", "matrix": "adj", "location": "forward (gcn.py:12)", "constant": True} | more
    return SparseOperand(
        kind="GraphConvolution",
        rows=2708,
        columns=2708,
        zero_frac=0.9985,
        calls=2,
        dense_ns=None if dense_ms is None else round(dense_ms * MS),
        sparse_ns=None if sparse_ms is None else round(sparse_ms * MS),
        **described,
    )


def provoked_by_a_dense_adjacency_matrix():
    return training(operand(60, 4))


def provoked_by_an_adjacency_matrix_and_a_bag_of_words():
    return training(operand(30, 4), operand(20, 5, name="model.first", matrix="features"))


def provoked_by_a_bag_of_words_in_each_batch():
    return training(operand(60, 4, matrix="batch", constant=False))


def provoked_by_a_matrix_that_no_variable_holds():
    return training(operand(60, 4, name=None, matrix=None, location=None))


def spared_where_no_matrix_has_mostly_zeros():
    return training()


def spared_where_the_sparse_product_is_not_faster():
    return training(operand(60, 55))


def spared_where_the_products_take_little_time():
    return training(operand(4, 0.1))


def spared_where_the_calls_take_much_less_time_than_the_products_alone_on_a_busy_machine():
    return training(operand(60, 4, step_frac=0.01))


def spared_where_the_products_were_not_timed():
    return training(operand(None, None))


def spared_where_a_damaged_file_has_no_sparse_time():
    return training(operand(60, 0))
