"""Minimum bytes that an operator must read and write, from the sizes and types of its inputs."""

from __future__ import annotations

from gpulab.analysis.kernels.flops import Inputs, Shape, matrix_product

# Operators with `out=`: number of arguments before it, and maximum number of tensors before it.
_BEFORE_OUT = {
    **dict.fromkeys(("add", "sub"), (3, 2)),
    **dict.fromkeys(("mul", "div", "pow", "maximum", "minimum", "mm", "bmm"), (2, 2)),
    **dict.fromkeys(("addmm", "baddbmm"), (5, 3)),
    **dict.fromkeys(("clamp", "where"), (3, 3)),
    **dict.fromkeys(
        ("abs", "cos", "erf", "exp", "log", "neg", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt", "tanh"), (1, 1)
    ),
}
# Their input, or its first tensor, is written and not read.
_WRITTEN_ONLY = frozenset(
    ("copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "_foreach_copy_",
     "_foreach_zero_")
)  # fmt: skip
# Their result is one number, or one per row: negligible compared with their input.
_REDUCING = frozenset(
    ("sum", "mean", "prod", "var", "std", "var_mean", "norm", "linalg_vector_norm", "amax", "amin", "max", "min",
     "argmax", "argmin", "all", "any", "logsumexp", "_foreach_norm")
)  # fmt: skip
_BOOLEAN = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or")
)
# They write only the elements given by an index.
_PARTS = ("index_", "scatter", "put_", "masked_scatter")
# Fused optimizers: lists of equally many tensors; all but the gradients are written.
_FUSED = {"_fused_adam_": (4, 5), "_fused_adamw_": (4, 5), "_fused_sgd_": (2, 3), "_fused_adagrad_": (3, 3)}


def min_bytes_moved(op: str, op_inputs: Inputs) -> float | None:
    """Return the minimum bytes read and written, each element once; None if types are unknown.

    An in-place operator reads and writes its tensor. An `out=` tensor is only written.
    """
    name = op.removeprefix("aten::")
    input_bytes, element_bytes = op_inputs.bytes, op_inputs.element_bytes
    if input_bytes is None or element_bytes is None:
        return None
    if name in _WRITTEN_ONLY or _has_out_argument(name, op_inputs):
        return float(input_bytes)
    if (matrix := matrix_product(op, op_inputs)) is not None:
        return float(input_bytes + matrix.times * matrix.rows * matrix.columns * element_bytes)
    return float(input_bytes + _written(name, op_inputs, input_bytes, element_bytes))


def _written(name: str, op_inputs: Inputs, input_bytes: int, element_bytes: int) -> float:
    """Return the bytes written in addition to the bytes read."""
    if name in _REDUCING or name.startswith(_PARTS):
        return 0
    if name in _FUSED:
        lists = _count_lists([shape for shape, _ in op_inputs.tensors], *_FUSED[name])
        return input_bytes * (lists - 1) / lists
    if name.startswith("_foreach_"):
        min_lists = 3 if "_addc" in name else 1
        lists = _count_lists(
            [shape for shape, _ in op_inputs.tensors], min_lists, max(min_lists, 3 if "_lerp" in name else 2)
        )
        return input_bytes / lists
    if _in_place(name):
        return op_inputs.tensors[0][1] or 0
    return op_inputs.elements * (1 if name in _BOOLEAN else element_bytes)


def _in_place(name: str) -> bool:
    """Whether the operator works in place, by its last letter; `__and__` does not, `__iand__` does."""
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


def _has_out_argument(name: str, op_inputs: Inputs) -> bool:
    """Whether the last tensor is the `out=` argument."""
    arguments, tensors = _BEFORE_OUT.get(name, (None, None))
    if arguments is None or tensors is None or not op_inputs.shapes:
        return False
    return bool(op_inputs.shapes[-1]) and (len(op_inputs.shapes) > arguments or len(op_inputs.tensors) > tensors)


def _count_lists(shapes: list[Shape], min_lists: int, max_lists: int) -> int:
    """Return the largest possible number of successive lists with equal shapes that these shapes form."""
    for lists in range(max_lists, min_lists, -1):
        length, rest = divmod(len(shapes), lists)
        if not rest and shapes[: length * (lists - 1)] == shapes[length:]:
            return lists
    return min_lists
