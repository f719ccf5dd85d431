"""FLOPs of an operator, from the sizes and types of its inputs."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import NamedTuple

from gpulab.columns import MAX_SIZE
from gpulab.hardware.precision import Precision

Shape = tuple[int, ...]
_MAX_DIMENSIONS = 64  # PyTorch's own limit

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
# Dimension of the key length: (batch, heads, length, width) or (batch, length, heads, width).
_ATTENTIONS = (
    ("aten::_scaled_dot_product_", 2),
    ("aten::_flash_attention_", 1),
    ("aten::_efficient_attention_", 1),
    ("aten::_cudnn_attention_", 2),
)
_BACKWARD = {
    "aten::convolution_backward": (0, 1, 2),
    "aten::cudnn_convolution_backward": (1, 0, 2),
}  # positions of grad_output, input, weight


class Inputs(NamedTuple):
    """The inputs of an operator."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]

    @property
    def elements(self) -> int:
        """Number of elements of the largest tensor; 0 without tensors."""
        return max((math.prod(shape) for shape in self.shapes if shape), default=0)

    @property
    def bytes(self) -> int | None:
        """Total bytes of the tensors; None if a type is unknown."""
        total = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=False):
            if shape:
                if dtype not in _BYTES:
                    return None
                total += math.prod(shape) * _BYTES[dtype]
        return total

    @property
    def tensors(self) -> tuple[tuple[Shape, int | None], ...]:
        """Shape and bytes of each tensor, without scalars; bytes are None if the type is unknown."""
        pairs = zip(self.shapes, self.dtypes, strict=False)
        return tuple(
            (shape, math.prod(shape) * _BYTES[dtype] if dtype in _BYTES else None) for shape, dtype in pairs if shape
        )

    @property
    def precision(self) -> Precision:
        """Precision of the first tensor."""
        first = next((d for shape, d in zip(self.shapes, self.dtypes, strict=False) if shape), "")
        return _PRECISIONS.get(first, Precision.UNKNOWN)

    @property
    def element_bytes(self) -> int | None:
        """Bytes per element of the first tensor; None if unknown."""
        first = next((d for shape, d in zip(self.shapes, self.dtypes, strict=False) if shape), "")
        return _BYTES.get(first)


class Product(NamedTuple):
    """A batched matrix product: `times` products of (rows x inner) by (inner x columns)."""

    times: int
    rows: int
    inner: int
    columns: int


@lru_cache(maxsize=100_000)
def parse_inputs(shapes: str | None, dtypes: str | None) -> Inputs:
    """Parse recorded inputs: '[[64, 3], []]' and '["float", "Scalar"]'. Invalid entries count as no tensor."""
    return Inputs(tuple(map(_shape, _list_of(shapes))), tuple(str(each) for each in _list_of(dtypes)))


def _list_of(text: str | None) -> list[object]:
    """Parse a JSON list; anything else gives an empty one."""
    try:
        values = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return values if isinstance(values, list) else []


def _shape(sizes: object) -> Shape:
    """Return the shape of a tensor; () for anything that is none, or that no memory can hold."""
    if not isinstance(sizes, list) or len(sizes) > _MAX_DIMENSIONS:
        return ()
    if not all(type(size) is int and 0 <= size <= MAX_SIZE for size in sizes) or math.prod(sizes) > MAX_SIZE:
        return ()
    return tuple(sizes)


def matrix_product(op: str, op_inputs: Inputs) -> Product | None:
    """Return the matrix product that an operator computes; None for other operators."""
    first = _PRODUCTS.get(op)
    if first is None or len(op_inputs.shapes) < first + 2:
        return None
    left, right = op_inputs.shapes[first], op_inputs.shapes[first + 1]
    if len(left) == len(right) == 2 and left[1] == right[0]:
        return Product(1, left[0], left[1], right[1])
    if len(left) == len(right) == 3 and left[0] == right[0] and left[2] == right[1]:
        return Product(left[0], left[1], left[2], right[2])
    return None


def flops(op: str, op_inputs: Inputs) -> float | None:
    """Return the floating-point operations, a multiply-add as two; None if it is no matrix work or sizes are unknown.

    Attention is counted without a causal mask; with one it needs half of that.
    """
    if (matrix := matrix_product(op, op_inputs)) is not None:
        return 2.0 * math.prod(matrix)
    if op in _BACKWARD and len(op_inputs.shapes) > 2:
        grad, image, weight = (op_inputs.shapes[dimension] for dimension in _BACKWARD[op])
        if grad and image and weight:
            return 4.0 * math.prod(grad) * math.prod(weight[1:])  # the gradients of input and weight
        return None
    dimension = next((dimension for name, dimension in _ATTENTIONS if op.startswith(name)), None)
    if dimension is not None and len(op_inputs.shapes) > 2:
        backward = op.endswith("_backward")
        query, key = op_inputs.shapes[1:3] if backward else op_inputs.shapes[0:2]
        if len(query) == len(key) == 4:
            return (10.0 if backward else 4.0) * math.prod(query) * key[dimension]
    return None


def min_flops(op: str, op_inputs: Inputs) -> float | None:
    """Return a lower bound of the FLOPs for any algorithm; None if the sizes are unknown.

    Winograd and FFT algorithms multiply less often than the definition of a convolution, but at least once per channel
    and output pixel: 1 / (k x k) of the direct count for a k x k filter. Possibly only one of its two gradients is
    needed. Attention may skip masked parts, and may keep results that backward would recompute.
    """
    direct = flops(op, op_inputs)
    if direct is None or matrix_product(op, op_inputs) is not None:
        return direct
    if op in _BACKWARD:
        return direct / 2 / max(1, math.prod(op_inputs.shapes[2][2:]))
    return 0.4 * direct


def largest_bytes(op_inputs: Inputs) -> float:
    """Return the bytes of the largest input tensor of a known type; 0 if there is none."""
    tensors = zip(op_inputs.shapes, op_inputs.dtypes, strict=False)
    return max((float(math.prod(shape) * _BYTES[dtype]) for shape, dtype in tensors if dtype in _BYTES), default=0.0)
