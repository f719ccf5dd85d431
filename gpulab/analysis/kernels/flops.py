"""What an operator reads, writes and computes, from the sizes and types of its inputs."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import NamedTuple

from gpulab.hardware.precision import Precision

Shape = tuple[int, ...]

_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
_PRECISIONS = {
    "double": Precision.FLOAT64,
    "float": Precision.FLOAT32,
    "c10::Half": Precision.HALF,
    "c10::BFloat16": Precision.HALF,
    "c10::Float8_e4m3fn": Precision.HALF,
    "c10::Float8_e5m2": Precision.HALF,
}
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_addmm_activation": 1}
# Where the length of the keys stands: (batch, heads, length, width) or (batch, length, heads, width).
_ATTENTIONS = (
    ("aten::_scaled_dot_product_", 2),
    ("aten::_flash_attention_", 1),
    ("aten::_efficient_attention_", 1),
    ("aten::_cudnn_attention_", 2),
)
_BACKWARD = {"aten::convolution_backward": (0, 1, 2), "aten::cudnn_convolution_backward": (1, 0, 2)}  # output, input


class Inputs(NamedTuple):
    """The tensors an operator was given."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]

    @property
    def elements(self) -> int:
        """In the largest of them; 0 where there is no tensor."""
        return max((math.prod(shape) for shape in self.shapes if shape), default=0)

    @property
    def bytes(self) -> int | None:
        """In all of them; None where a type is not known."""
        total = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=False):
            if shape:
                if dtype not in _BYTES:
                    return None
                total += math.prod(shape) * _BYTES[dtype]
        return total

    @property
    def tensors(self) -> tuple[tuple[Shape, int | None], ...]:
        """The sizes of each tensor and the bytes it takes, None where its type is not known; no scalars."""
        told = zip(self.shapes, self.dtypes, strict=False)
        return tuple(
            (shape, math.prod(shape) * _BYTES[dtype] if dtype in _BYTES else None) for shape, dtype in told if shape
        )

    @property
    def precision(self) -> Precision:
        """Of the first tensor."""
        first = next((d for shape, d in zip(self.shapes, self.dtypes, strict=False) if shape), "")
        return _PRECISIONS.get(first, Precision.UNKNOWN)

    @property
    def element_bytes(self) -> int | None:
        """Of one number of the first tensor."""
        first = next((d for shape, d in zip(self.shapes, self.dtypes, strict=False) if shape), "")
        return _BYTES.get(first)


class Product(NamedTuple):
    """A matrix product: so many times (rows x inner) by (inner x columns)."""

    times: int
    rows: int
    inner: int
    columns: int


@lru_cache(maxsize=100_000)
def inputs(shapes: str | None, dtypes: str | None) -> Inputs:
    """The inputs as recorded: '[[64, 3], []]' and '["float", "Scalar"]'; what is no list of sizes counts as none."""
    try:
        told, types = json.loads(shapes or "[]"), json.loads(dtypes or "[]")
    except ValueError:
        return Inputs((), ())
    if not isinstance(told, list) or not isinstance(types, list):
        return Inputs((), ())
    return Inputs(tuple(map(_shape, told)), tuple(str(each) for each in types))


def _shape(told: object) -> Shape:
    if isinstance(told, list) and all(type(size) is int and size >= 0 for size in told):
        return tuple(told)
    return ()


def product(op: str, given: Inputs) -> Product | None:
    """The matrix product that an operator is; None for another operator."""
    first = _PRODUCTS.get(op)
    if first is None or len(given.shapes) < first + 2:
        return None
    left, right = given.shapes[first], given.shapes[first + 1]
    if len(left) == len(right) == 2 and left[1] == right[0]:
        return Product(1, left[0], left[1], right[1])
    if len(left) == len(right) == 3 and left[0] == right[0] and left[2] == right[1]:
        return Product(left[0], left[1], left[2], right[2])
    return None


def flops(op: str, given: Inputs) -> float | None:
    """Floating-point operations, a multiply-add as two; None for operators that are no matrix work, or do not tell.

    Attention is counted without a causal mask; one with it does half of that.
    """
    if (matrix := product(op, given)) is not None:
        return 2.0 * math.prod(matrix)
    if op in _BACKWARD and len(given.shapes) > 2:
        grad, image, weight = (given.shapes[place] for place in _BACKWARD[op])
        if grad and image and weight:
            return 4.0 * math.prod(grad) * math.prod(weight[1:])  # the gradients of input and weight
        return None
    place = next((place for name, place in _ATTENTIONS if op.startswith(name)), None)
    if place is not None and len(given.shapes) > 2:
        backward = op.endswith("_backward")
        query, key = given.shapes[1:3] if backward else given.shapes[0:2]
        if len(query) == len(key) == 4:
            return (10.0 if backward else 4.0) * math.prod(query) * key[place]
    return None


def least_flops(op: str, given: Inputs) -> float | None:
    """The arithmetic that no way of computing it goes below; None where the sizes do not tell.

    Winograd's algorithm, and transforms, multiply less than a convolution's definition says, though never less than
    once for each channel and pixel of the result: a filter of k x k costs at least one k x k-th. Of its two gradients
    only one may be wanted. Attention may skip what a causal mask hides, and keep what backward would compute again.
    """
    counted = flops(op, given)
    if counted is None or product(op, given) is not None:
        return counted
    if op in _BACKWARD:
        return counted / 2 / max(1, math.prod(given.shapes[2][2:]))
    return 0.4 * counted


def largest_bytes(given: Inputs) -> float:
    """The bytes of the largest tensor among the inputs; 0 where there is none of a type that is known."""
    sized = zip(given.shapes, given.dtypes, strict=False)
    return max((float(math.prod(shape) * _BYTES[dtype]) for shape, dtype in sized if dtype in _BYTES), default=0.0)
