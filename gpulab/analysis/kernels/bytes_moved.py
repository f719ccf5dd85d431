"""How many bytes an operator must move at the least, from the sizes and types of what it was given."""

from __future__ import annotations

from gpulab.analysis.kernels.flops import Inputs, Shape, product

# Where the result is given as well (`out=`): so many arguments come before it, and so many tensors at most.
_BEFORE_OUT = {
    **dict.fromkeys(("add", "sub"), (3, 2)),
    **dict.fromkeys(("mul", "div", "pow", "maximum", "minimum", "mm", "bmm"), (2, 2)),
    **dict.fromkeys(("addmm", "baddbmm"), (5, 3)),
    **dict.fromkeys(("clamp", "where"), (3, 3)),
    **dict.fromkeys(
        ("abs", "cos", "erf", "exp", "log", "neg", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt", "tanh"), (1, 1)
    ),
}
# What they are given is written and not read: the whole of it, or its first tensor.
_WRITTEN_ONLY = frozenset(
    ("copy_", "zero_", "fill_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "_foreach_copy_",
     "_foreach_zero_")
)  # fmt: skip
# Their result is one number, or one of each row: next to nothing beside what they read.
_REDUCING = frozenset(
    ("sum", "mean", "prod", "var", "std", "var_mean", "norm", "linalg_vector_norm", "amax", "amin", "max", "min",
     "argmax", "argmin", "all", "any", "logsumexp", "_foreach_norm")
)  # fmt: skip
_BOOLEAN = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or")
)
# Places that an index tells are written, and no others.
_PARTS = ("index_", "scatter", "put_", "masked_scatter")
# An optimizer in one kernel: lists of as many tensors each, all of which but the gradients are written again.
_FUSED = {"_fused_adam_": (4, 5), "_fused_adamw_": (4, 5), "_fused_sgd_": (2, 3), "_fused_adagrad_": (3, 3)}


def moved_bytes(op: str, given: Inputs) -> float | None:
    """The least that must be read and written: what is read once, and what is written once.

    An operator that works in place reads a tensor and writes it again. Of what is given as `out=` nothing is read.
    """
    name = op.removeprefix("aten::")
    told, each = given.bytes, given.element_bytes
    if told is None or each is None:
        return None
    if name in _WRITTEN_ONLY or _given_the_result(name, given):
        return float(told)
    if (matrix := product(op, given)) is not None:
        return float(told + matrix.times * matrix.rows * matrix.columns * each)
    return float(told + _written(name, given, told, each))


def _written(name: str, given: Inputs, told: int, each: int) -> float:
    """What is written besides what was counted as read."""
    if name in _REDUCING or name.startswith(_PARTS):
        return 0
    if name in _FUSED:
        lists = _lists([shape for shape, _ in given.tensors], *_FUSED[name])
        return told * (lists - 1) / lists
    if name.startswith("_foreach_"):
        many = 3 if "_addc" in name else 1
        lists = _lists([shape for shape, _ in given.tensors], many, max(many, 3 if "_lerp" in name else 2))
        return told / lists
    if _in_place(name):
        return given.tensors[0][1] or 0
    return given.elements * (1 if name in _BOOLEAN else each)


def _in_place(name: str) -> bool:
    """By its last letter; `__and__` is not, `__iand__` is."""
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


def _given_the_result(name: str, given: Inputs) -> bool:
    """Whether the last tensor is where the result goes."""
    places, tensors = _BEFORE_OUT.get(name, (None, None))
    if places is None or tensors is None or not given.shapes:
        return False
    return bool(given.shapes[-1]) and (len(given.shapes) > places or len(given.tensors) > tensors)


def _lists(shapes: list[Shape], least: int, most: int) -> int:
    """How many lists of tensors of the same sizes these are, one after the other: the most that they can be."""
    for lists in range(most, least, -1):
        length, rest = divmod(len(shapes), lists)
        if not rest and shapes[: length * (lists - 1)] == shapes[length:]:
            return lists
    return least
