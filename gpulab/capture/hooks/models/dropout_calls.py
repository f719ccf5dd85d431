"""The calls of nn.Dropout in a training step, as values from which they can be timed later."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.models.layer_calls import Shape, is_dense_float32, shape_of


class TimedDropout(NamedTuple):
    """A call of nn.Dropout for a tensor in float32 on the CPU. Equal calls take equally long."""

    shape: Shape
    rate: float  # 0-1, exclusive
    with_gradient: bool


def dropout_call(module: Any, arguments: tuple[Any, ...]) -> TimedDropout | None:
    """Describe a call of nn.Dropout that draws random numbers; None for other modules, and if it works in place."""
    import torch

    tensor = arguments[0] if arguments else None
    if type(module) is not torch.nn.Dropout or not is_tensor(type(tensor)) or not is_dense_float32(tensor):
        return None
    values = object.__getattribute__(module, "__dict__")
    rate = values.get("p")
    if not values.get("training") or values.get("inplace") or type(rate) is not float or not 0 < rate < 1:
        return None
    kind: Any = torch.Tensor
    return TimedDropout(shape_of(tensor), rate, torch.is_grad_enabled() and bool(kind.requires_grad.__get__(tensor)))
