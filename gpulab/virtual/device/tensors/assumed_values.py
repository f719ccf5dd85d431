"""Values that are asked of a GPU without numbers: what is answered, and the assumption that it makes."""

from __future__ import annotations

import math
from math import prod
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.tensors.tensor_info import dense

_FLOAT, _INT, _TRUTH = 1.0, 1, False
MOST_FILLED = 2**16  # elements of a copy to the host that are filled; larger ones are zeros, which cost nothing


def number(tensor: Any, assumptions: Assumptions) -> Any:
    """One value read by the program, as `.item()` reads it."""
    import torch

    known = known_value(tensor)
    if known is not None:
        if isinstance(known, bool):
            assumptions.take("whether numbers are finite, close, or valid, as with isfinite", str(known))
        return known
    if tensor.dtype is torch.bool:
        assumptions.take("truth values read from the GPU, as with if or .item()", str(_TRUTH))
        return _TRUTH
    if tensor.dtype.is_complex:
        assumptions.take("complex values read from the GPU, as with .item()", "1+0j")
        return complex(_FLOAT)
    if tensor.dtype.is_floating_point:
        assumptions.take("numbers read from the GPU, as with .item()", str(_FLOAT))
        return _FLOAT
    assumptions.take("whole numbers read from the GPU, as with .item()", str(_INT))
    return _INT


def on_host(tensor: Any, assumptions: Assumptions, dtype: Any = None) -> Any:
    """A real CPU tensor in place of what a copy from the GPU would bring."""
    import torch

    dtype = dtype or tensor.dtype
    fill = known_value(tensor)
    if fill is None:
        fill = _guess(tensor, dtype)
        assumptions.take("tensors copied from the GPU to the host, as with .cpu()", f"{fill} in every place")
    strides = _strides(tensor)
    if fill == 0:
        return _zeros(tuple(tensor.shape), strides, dtype)
    return torch.empty_strided(tuple(tensor.shape), strides, dtype=dtype, device="cpu").fill_(fill)


def _guess(tensor: Any, dtype: Any) -> Any:
    import torch

    if dtype is torch.bool:
        return _TRUTH
    if tensor.numel() > MOST_FILLED:
        return 0
    # Whole numbers are often places in something: 0 is one that exists.
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return (_INT if tensor.dim() == 0 else 0) if whole else _FLOAT


def _zeros(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
    """Zeros that take no memory until they are read: the system hands out pages of zeros on first use."""
    import numpy as np
    import torch

    held = torch.from_numpy(np.zeros(max(1, prod(sizes)) * dtype.itemsize, np.uint8)).view(dtype)
    return held.as_strided(sizes, strides)


def _strides(tensor: Any) -> tuple[int, ...]:
    """Its strides where they leave no holes, else those of a contiguous tensor."""
    import torch

    if dense(tensor):
        return tuple(tensor.stride())
    return tuple(torch._prims_common.make_contiguous_strides_for(tuple(tensor.shape)))


# What is known all the same. Comparisons with oneself and with infinity are how isnan and isfinite are made, and
# torch.full has one value in every place: the numbers that programs stop at or go on by.


def known_value(tensor: Any) -> Any:
    """The one value of every place, where that is known and nothing has been written since."""
    told = getattr(tensor, "_gpulab_known", None)
    return told[0] if told is not None and _version(tensor) in told[1] else None


def know(tensor: Any, value: Any, *, written: bool = False) -> None:
    """Every place of this tensor holds this value, until something writes to it.

    `written`: by the operator that runs now; PyTorch counts its writing only after it.
    """
    version = _version(tensor)
    tensor._gpulab_known = (value, (version, version + 1) if written else (version,))


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def learned(name: str, args: Any, out: Any) -> None:
    """Tell what an operator's result must be, where that is clear without any number."""
    rule = _RULES.get(name)
    if rule is not None:
        value = rule(args)
        if value is not None:
            know(out, value)


def _same(args: Any) -> Any:
    return True if args[0] is args[1] else None


def _differs(args: Any) -> Any:
    if len(args) > 1 and isinstance(args[1], float) and math.isinf(args[1]):
        return True
    return False if args[0] is args[1] else None


def _equals(args: Any) -> Any:
    return False if isinstance(args[1], float) and math.isinf(args[1]) else None


def _carried(args: Any) -> Any:
    return known_value(args[0])


def _both(args: Any) -> Any:
    both = [known_value(each) if hasattr(each, "dim") else each for each in args[:2]]
    return bool(both[0] and both[1]) if all(isinstance(each, bool) for each in both) else None


def _either(args: Any) -> Any:
    both = [known_value(each) if hasattr(each, "dim") else each for each in args[:2]]
    return bool(both[0] or both[1]) if all(isinstance(each, bool) for each in both) else None


def _turned(args: Any) -> Any:
    value = known_value(args[0])
    return (not value) if isinstance(value, bool) else None


def _zero(args: Any) -> Any:
    return 0


def _filled(args: Any) -> Any:
    return args[1] if isinstance(args[1], int | float | bool) else None


_RULES = {
    "aten::eq.Tensor": _same,
    "aten::ne.Tensor": _differs,
    "aten::ne.Scalar": _differs,
    "aten::eq.Scalar": _equals,
    "aten::isfinite": lambda args: True,
    "aten::isnan": lambda args: False,
    "aten::isinf": lambda args: False,
    "aten::_is_all_true": lambda args: True,
    "aten::_is_any_true": lambda args: False,
    "aten::all": _carried,
    "aten::all.dim": _carried,
    "aten::any": _carried,
    "aten::any.dim": _carried,
    "aten::detach": _carried,
    "aten::alias": _carried,
    "aten::_to_copy": _carried,
    "aten::clone": _carried,
    "aten::transpose.int": _carried,
    "aten::t": _carried,
    "aten::permute": _carried,
    "aten::slice.Tensor": _carried,
    "aten::select.int": _carried,
    "aten::squeeze.dim": _carried,
    "aten::squeeze": _carried,
    "aten::unsqueeze": _carried,
    "aten::expand": _carried,
    "aten::_unsafe_view": _carried,
    "aten::view": _carried,
    "aten::mul.Tensor": _both,
    "aten::logical_and": _both,
    "aten::bitwise_and.Tensor": _both,
    "aten::logical_or": _either,
    "aten::bitwise_or.Tensor": _either,
    "aten::logical_not": _turned,
    "aten::bitwise_not": _turned,
    "aten::full": _filled,
    "aten::full_like": _filled,
    "aten::zeros": _zero,
}
