"""Recognise functions computed by elementwise chains (GELU, layer norm, softmax, attention) by the names of parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from gpulab.intervals import Ints


class FusedFunction(Enum):
    """A function for which PyTorch has a fused operator, by its common name."""

    ATTENTION = "attention"
    GELU_TANH = "GELU (by tanh)"
    GELU = "GELU"
    SILU = "SiLU"
    LAYER_NORM = "layer normalisation"
    RMS_NORM = "RMS normalisation"
    SOFTMAX = "softmax"


# Operation of a part by its name: operators ("aten::tanh") and kernels ("tanh_kernel_cuda").
_OPERATIONS = {
    "tanh": r"tanh",
    "erf": r"(?<!g)erf",
    "exp": r"exp(?!and|lic|res|m1)",
    "log": r"aten::log_?$|log_kernel",
    "sigmoid": r"sigmoid",
    "mean": r"aten::mean|meanops",
    "variance": r"aten::var|aten::std|welford|stdops",
    "root": r"sqrt",
    "power": r"aten::pow|pow_|aten::square",
    "sum": r"aten::sum|sum_functor|sumops",
    "maximum": r"aten::a?max|maxops|maxnan",
    "divide": r"aten::div|divfunctor|div_true|divtrue|reciprocal",
    "multiply": r"aten::mul|mulfunctor|binary_internal::mul",
    "add": r"aten::add_?$|functor_add|addfunctor",
    "subtract": r"aten::r?sub|functor_sub|subfunctor",
    "negate": r"aten::neg|neg_kernel",
    "clamp": r"aten::clamp|clamp|maximum|minimum|aten::relu|aten::threshold",
    "choose": r"aten::where|where_kernel|masked_fill",
    "absolute": r"aten::abs|abs_kernel|aten::sign",
    "softmax": r"aten::_softmax|softmax",
    "fill": r"aten::masked_fill",
}
_PATTERNS = {word: re.compile(pattern) for word, pattern in _OPERATIONS.items()}
# Operators that are not elementwise, although their names match.
_NOT_ELEMENTWISE = re.compile(
    r"addmm|addcmul_?$|cumsum|logsumexp|_foreach|_fused|layer_norm|gelu|log_softmax|max_pool|sum_to|summary"
)


def operations_by_code(vocabulary: Sequence[str], codes: Ints) -> dict[int, frozenset[str]]:
    """Return the operations of the events with these names; empty for names that are not elementwise."""
    return {code: operations_of_name(vocabulary[code]) for code in codes.tolist() if code >= 0}


@lru_cache(maxsize=4096)
def operations_of_name(name: str) -> frozenset[str]:
    """Return the operations in the name of an operator or kernel, as keys of _OPERATIONS."""
    lower = name.lower()
    if _NOT_ELEMENTWISE.search(lower):
        return frozenset()
    return frozenset(word for word, pattern in _PATTERNS.items() if pattern.search(lower))


def recognise_function(parts: Sequence[frozenset[str]], *, attention: bool) -> FusedFunction | None:
    """Return the function that a chain of these parts computes; None if unknown."""
    operations = frozenset().union(*parts)
    if attention:
        return FusedFunction.ATTENTION
    if "root" in operations and operations & {"mean", "variance"}:
        centred = "variance" in operations or "subtract" in operations
        return FusedFunction.LAYER_NORM if centred else FusedFunction.RMS_NORM
    if "erf" in operations:
        return FusedFunction.GELU
    if "tanh" in operations and "multiply" in operations:
        return FusedFunction.GELU_TANH
    if _is_softmax(operations):
        return FusedFunction.SOFTMAX
    return FusedFunction.SILU if "sigmoid" in operations and "multiply" in operations else None


def _is_softmax(operations: frozenset[str]) -> bool:
    """Whether exponentials are divided by their sum. Gaussians have a power, and the logistic function a negation."""
    if "exp" not in operations or operations & {"log", "power", "negate"}:
        return False
    return {"sum", "divide"} <= operations or ("maximum" in operations and bool(operations & {"sum", "divide"}))
