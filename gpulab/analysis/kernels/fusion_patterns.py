"""What a chain of elementwise parts computes: GELU, layer normalisation, softmax, attention, by the parts' names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from gpulab.intervals import Ints


class Formula(Enum):
    """A function that PyTorch has in one piece, as its users call it."""

    ATTENTION = "attention"
    GELU_TANH = "GELU (by tanh)"
    GELU = "GELU"
    SILU = "SiLU"
    LAYER_NORM = "layer normalisation"
    RMS_NORM = "RMS normalisation"
    SOFTMAX = "softmax"


# What a part of a chain does, by its name: of operators ("aten::tanh") and of kernels ("tanh_kernel_cuda").
_WORDS = {
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
_FOUND = {word: re.compile(pattern) for word, pattern in _WORDS.items()}
# Operators on whole tensors that no chain of elementwise work holds, though their names sound like it.
_NOT = re.compile(
    r"addmm|addcmul_?$|cumsum|logsumexp|_foreach|_fused|layer_norm|gelu|log_softmax|max_pool|sum_to|summary"
)


def parts_of(vocabulary: Sequence[str], codes: Ints) -> dict[int, frozenset[str]]:
    """What the events of these names do, a few words each; none for what is not elementwise."""
    return {code: words(vocabulary[code]) for code in codes.tolist() if code >= 0}


def words(name: str) -> frozenset[str]:
    """What a part of a chain does, in words of ours."""
    lower = name.lower()
    if _NOT.search(lower):
        return frozenset()
    return frozenset(word for word, pattern in _FOUND.items() if pattern.search(lower))


def formula(parts: Sequence[frozenset[str]], *, attention: bool) -> Formula | None:
    """What a chain of such parts computes; None where it is none of these."""
    held = frozenset().union(*parts)
    if attention:
        return Formula.ATTENTION
    if "root" in held and held & {"mean", "variance"}:
        centred = "variance" in held or "subtract" in held
        return Formula.LAYER_NORM if centred else Formula.RMS_NORM
    if "erf" in held:
        return Formula.GELU
    if "tanh" in held and "multiply" in held:
        return Formula.GELU_TANH
    if "exp" in held and held & {"sum", "divide"} and "log" not in held:
        return Formula.SOFTMAX
    return Formula.SILU if "sigmoid" in held and "multiply" in held else None
