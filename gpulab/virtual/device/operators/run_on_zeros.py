"""Find the result shapes of operators without a shape rule by running them on small CPU tensors of zeros."""

from __future__ import annotations

from typing import Any

from gpulab.capture.protection.guard import is_from_outside
from gpulab.virtual.device.tensors.tensor_info import tensors_in

MAX_ARGUMENT_BYTES = 2**26


def run_on_zeros(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on zeros and return GPU tensors of the result shapes.

    Returns NotImplemented if the arguments exceed `MAX_ARGUMENT_BYTES`, or if the operator fails.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    tensors = tensors_in([*args, *kwargs.values()])
    if sum(each.numel() * each.element_size() for each in tensors) > MAX_ARGUMENT_BYTES:
        return NotImplemented

    def zeros_like(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros(tuple(value.shape), dtype=value.dtype, device="cpu")
        if isinstance(value, list | tuple):
            return type(value)(zeros_like(each) for each in value)
        return torch.device("cpu") if isinstance(value, torch.device) else value

    with _disable_current_modes():
        try:
            out = func(
                *[zeros_like(each) for each in args], **{name: zeros_like(each) for name, each in kwargs.items()}
            )
        except (RuntimeError, IndexError, ValueError) as error:
            if is_from_outside(error):
                raise
            return NotImplemented
    results = tensors_in(out if isinstance(out, list | tuple) else (out,))
    if not results or any(each.layout is not torch.strided for each in results):
        return NotImplemented

    def to_fake(value: Any) -> Any:
        return mode.fake_like(value, torch.device("cuda", 0)) if isinstance(value, torch.Tensor) else value

    if isinstance(out, list | tuple):  # named tuples too
        return [to_fake(each) for each in out] if isinstance(out, list) else tuple(to_fake(each) for each in out)
    return to_fake(out)
