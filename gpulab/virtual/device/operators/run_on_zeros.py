"""Operators that PyTorch has no shape rule for: run on zeros on the CPU, where that costs little, to see the shapes."""

from __future__ import annotations

from typing import Any

from gpulab.virtual.device.tensors.tensor_info import tensors_in

MOST_BYTES = 2**26


def on_zeros(mode: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result's shapes as tensors of the GPU; NotImplemented where that would cost much, or does not work."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    given = tensors_in([*args, *kwargs.values()])
    if sum(each.numel() * each.element_size() for each in given) > MOST_BYTES:
        return NotImplemented

    def real(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros(tuple(value.shape), dtype=value.dtype, device="cpu")
        if isinstance(value, list | tuple):
            return type(value)(real(each) for each in value)
        return torch.device("cpu") if isinstance(value, torch.device) else value

    with _disable_current_modes():
        try:
            out = func(*[real(each) for each in args], **{name: real(each) for name, each in kwargs.items()})
        except (RuntimeError, NotImplementedError, IndexError, ValueError):
            return NotImplemented
    made = tensors_in(out if isinstance(out, list | tuple) else (out,))
    if not made or any(each.layout is not torch.strided for each in made):
        return NotImplemented

    def fake(value: Any) -> Any:
        return mode.imagined(value, torch.device("cuda", 0)) if isinstance(value, torch.Tensor) else value

    if isinstance(out, list | tuple):  # named tuples too
        return [fake(each) for each in out] if isinstance(out, list) else tuple(fake(each) for each in out)
    return fake(out)
