"""What the prices ask of an operator's tensors."""

from __future__ import annotations

from math import prod

from gpulab.virtual.op_log.ops import Op, Tensor

HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "int64": "long",
    "int32": "int", "int16": "short", "int8": "signed char", "uint8": "unsigned char", "bool": "bool",
    "complex64": "c10::complex<float>", "complex128": "c10::complex<double>",
}  # fmt: skip


def c_type(dtype: str) -> str:
    """A type as kernels' names spell it."""
    return _C_TYPES.get(dtype, dtype)


def elements(tensor: Tensor) -> int:
    """How many numbers it has."""
    return prod(tensor.sizes)


def width(tensor: Tensor) -> int:
    """Bytes of one of its numbers."""
    count = elements(tensor)
    return max(1, tensor.bytes // count) if count else 4


def read(op: Op) -> int:
    """Bytes of all that goes in."""
    return sum(each.bytes for each in op.inputs)


def written(op: Op) -> int:
    """Bytes of all that comes out."""
    return sum(each.bytes for each in op.outputs)


def largest(op: Op) -> Tensor | None:
    """Of what goes in and comes out; None where nothing does."""
    return max((*op.inputs, *op.outputs), key=lambda each: each.bytes, default=None)


def main_dtype(op: Op) -> str:
    """The type that its arithmetic is named by: that of its first number with a fraction, else of its first one."""
    both = (*op.outputs, *op.inputs)
    return next((each.dtype for each in both if "float" in each.dtype), both[0].dtype if both else "float32")


def detail(op: Op, name: str) -> str | None:
    """What the device noted of it under this name."""
    return next((value for key, value in op.details if key == name), None)
