"""Types, sizes and bytes of an operator's tensors."""

from __future__ import annotations

from math import prod

from gpulab.virtual.op_log.ops import Op, TensorInfo

HALF_DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "int64": "long",
    "int32": "int", "int16": "short", "int8": "signed char", "uint8": "unsigned char", "bool": "bool",
    "complex64": "c10::complex<float>", "complex128": "c10::complex<double>",
}  # fmt: skip


def c_type(dtype: str) -> str:
    """Return a dtype as kernel names spell it."""
    return _C_TYPES.get(dtype, dtype)


def element_count(tensor: TensorInfo) -> int:
    """Return the number of elements."""
    return prod(tensor.sizes)


def bytes_per_element(tensor: TensorInfo) -> int:
    """Return the bytes per element."""
    count = element_count(tensor)
    return max(1, tensor.bytes // count) if count else 4


def bytes_read(op: Op) -> int:
    """Return the bytes of all inputs."""
    return sum(each.bytes for each in op.inputs)


def bytes_written(op: Op) -> int:
    """Return the bytes of all outputs."""
    return sum(each.bytes for each in op.outputs)


def largest_tensor(op: Op) -> TensorInfo | None:
    """Return the largest input or output; None if there are none."""
    return max((*op.inputs, *op.outputs), key=lambda tensor: tensor.bytes, default=None)


def main_dtype(op: Op) -> str:
    """Return the dtype in kernel names: the first floating-point dtype of outputs and inputs, else the first dtype."""
    both = (*op.outputs, *op.inputs)
    return next((each.dtype for each in both if "float" in each.dtype), both[0].dtype if both else "float32")


def detail(op: Op, name: str) -> str | None:
    """Return the value of a detail that the device recorded; None if there is none."""
    return next((value for key, value in op.details if key == name), None)
