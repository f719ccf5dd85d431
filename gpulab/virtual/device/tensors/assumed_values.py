"""Values that a program reads from the virtual GPU: known values where possible, else assumed ones."""

from __future__ import annotations

import math
from math import prod
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.tensors.tensor_info import is_dense
from gpulab.virtual.device.tensors.true_values import UNIFORM_ATTRIBUTE, true_values

_FLOAT, _INT, _BOOL = 1.0, 1, False
MAX_FILLED_ELEMENTS = 2**16  # elements; larger copies to the host are left zero, which costs nothing


def item_value(tensor: Any, assumptions: Assumptions) -> Any:
    """Return the value that `.item()` gives: the known value, or an assumed one."""
    import torch

    values = true_values(tensor)
    if values is not None:
        return values.item()
    value = known_value(tensor)
    if value is not None:
        if isinstance(value, bool):
            assumptions.add("whether values are finite, close or valid, as with isfinite", str(value))
        return value
    if tensor.dtype is torch.bool:
        assumptions.add("booleans read from the GPU, as with if or .item()", str(_BOOL))
        return _BOOL
    if tensor.dtype.is_complex:
        assumptions.add("complex values read from the GPU, as with .item()", "1+0j")
        return complex(_FLOAT)
    if tensor.dtype.is_floating_point:
        assumptions.add("numbers read from the GPU, as with .item()", str(_FLOAT))
        return _FLOAT
    assumptions.add("integers read from the GPU, as with .item()", str(_INT))
    return _INT


def host_copy(tensor: Any, assumptions: Assumptions, dtype: Any = None) -> Any:
    """Return a real CPU tensor for a copy from the GPU."""
    import torch

    dtype = dtype or tensor.dtype
    values = true_values(tensor)
    if values is not None:
        copy = torch.empty_strided(tuple(tensor.shape), _dense_strides(tensor), dtype=dtype, device="cpu")
        return copy.copy_(values)
    fill = known_value(tensor)
    if fill is None:
        fill = _assumed_value(tensor, dtype)
        assumptions.add(
            "values of a tensor that is copied to the host, as by .cpu()", f"all {fill}, because no values are computed"
        )
    strides = _dense_strides(tensor)
    if fill == 0:
        return _zeros(tuple(tensor.shape), strides, dtype)
    return torch.empty_strided(tuple(tensor.shape), strides, dtype=dtype, device="cpu").fill_(fill)


def _assumed_value(tensor: Any, dtype: Any) -> Any:
    import torch

    if dtype is torch.bool:
        return _BOOL
    if tensor.numel() > MAX_FILLED_ELEMENTS:
        return 0
    # Integers are often indices: index 0 exists.
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    return (_INT if tensor.dim() == 0 else 0) if is_integer else _FLOAT


def _zeros(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """Return zeros that take no memory until they are read: the OS maps zero pages on first use."""
    import numpy as np
    import torch

    zeros = torch.from_numpy(np.zeros(max(1, prod(sizes)) * dtype.itemsize, np.uint8)).view(dtype)
    return zeros.as_strided(sizes, strides)


def _dense_strides(tensor: Any) -> tuple[int, ...]:
    """Return the strides of a dense tensor, else those of a contiguous tensor of the same shape."""
    import torch

    if is_dense(tensor):
        return tuple(tensor.stride())
    return tuple(torch._prims_common.make_contiguous_strides_for(tuple(tensor.shape)))


# Some values are known. isnan and isfinite compare a tensor with itself and with infinity, and torch.full has one value
# in every element. Programs often branch on these values.


def known_value(tensor: Any) -> Any:
    """Return the value of every element; None if unknown, or if the tensor was written to since."""
    values = true_values(tensor)
    if values is not None:
        first = values.reshape(-1)[:1]
        return first.item() if len(first) and bool((values == first).all()) else None
    entry = getattr(tensor, UNIFORM_ATTRIBUTE, None)
    return entry[0] if entry is not None and _version(tensor) in entry[1] else None


def set_known_value(tensor: Any, value: Any, *, by_current_op: bool = False) -> None:
    """Note that every element of this tensor has this value until something writes to it.

    `written`: the running operator writes the value; PyTorch increments the tensor's version only after it.
    """
    version = _version(tensor)
    setattr(tensor, UNIFORM_ATTRIBUTE, (value, (version, version + 1) if by_current_op else (version,)))


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def infer_known_value(name: str, args: Any, out: Any) -> None:
    """Set the known value of an operator's result if it follows without the values of its inputs."""
    rule = _RULES.get(name)
    if rule is not None and true_values(out) is None:  # a view of true values needs no other
        value = rule(args)
        if value is not None:
            set_known_value(out, value)


def _self_equality(args: Any) -> Any:
    return True if args[0] is args[1] else None


def _inequality(args: Any) -> Any:
    if len(args) > 1 and isinstance(args[1], float) and math.isinf(args[1]):
        return True
    return False if args[0] is args[1] else None


def _equals_infinity(args: Any) -> Any:
    return False if isinstance(args[1], float) and math.isinf(args[1]) else None


def _same_as_input(args: Any) -> Any:
    return known_value(args[0])


def _logical_and(args: Any) -> Any:
    operands = [known_value(each) if hasattr(each, "dim") else each for each in args[:2]]
    return bool(operands[0] and operands[1]) if all(isinstance(each, bool) for each in operands) else None


def _logical_or(args: Any) -> Any:
    operands = [known_value(each) if hasattr(each, "dim") else each for each in args[:2]]
    return bool(operands[0] or operands[1]) if all(isinstance(each, bool) for each in operands) else None


def _logical_not(args: Any) -> Any:
    value = known_value(args[0])
    return (not value) if isinstance(value, bool) else None


def _zero(args: Any) -> Any:
    return 0


def _fill_value(args: Any) -> Any:
    return args[1] if isinstance(args[1], int | float | bool) else None


_RULES = {
    "aten::eq.Tensor": _self_equality,
    "aten::ne.Tensor": _inequality,
    "aten::ne.Scalar": _inequality,
    "aten::eq.Scalar": _equals_infinity,
    "aten::isfinite": lambda args: True,
    "aten::isnan": lambda args: False,
    "aten::isinf": lambda args: False,
    "aten::_is_all_true": lambda args: True,
    "aten::_is_any_true": lambda args: False,
    "aten::all": _same_as_input,
    "aten::all.dim": _same_as_input,
    "aten::any": _same_as_input,
    "aten::any.dim": _same_as_input,
    "aten::detach": _same_as_input,
    "aten::alias": _same_as_input,
    "aten::_to_copy": _same_as_input,
    "aten::clone": _same_as_input,
    "aten::transpose.int": _same_as_input,
    "aten::t": _same_as_input,
    "aten::permute": _same_as_input,
    "aten::slice.Tensor": _same_as_input,
    "aten::select.int": _same_as_input,
    "aten::squeeze.dim": _same_as_input,
    "aten::squeeze": _same_as_input,
    "aten::unsqueeze": _same_as_input,
    "aten::expand": _same_as_input,
    "aten::_unsafe_view": _same_as_input,
    "aten::view": _same_as_input,
    "aten::mul.Tensor": _logical_and,
    "aten::logical_and": _logical_and,
    "aten::bitwise_and.Tensor": _logical_and,
    "aten::logical_or": _logical_or,
    "aten::bitwise_or.Tensor": _logical_or,
    "aten::logical_not": _logical_not,
    "aten::bitwise_not": _logical_not,
    "aten::full": _fill_value,
    "aten::full_like": _fill_value,
    "aten::zeros": _zero,
}
