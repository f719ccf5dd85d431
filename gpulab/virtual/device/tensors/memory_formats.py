"""Memory formats that GPUs propagate but PyTorch's shape rules do not: channels-last through convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

StridedFactory = Callable[[Any, tuple[int, ...]], Any]  # creates a tensor like another, with these strides

_FORWARD, _BACKWARD = "aten::convolution", "aten::convolution_backward"


def with_gpu_memory_format(func: Any, args: Any, out: Any, factory: StridedFactory | None = None) -> Any:
    """Return an operator's result in the memory format of a GPU; `make` (default: its fake mode) creates it."""
    name = func._overloadpacket._qualified_op_name
    if name == _FORWARD:
        return _to_channels_last(out, factory) if _is_channels_last(args[0]) or _is_channels_last(args[1]) else out
    if name == _BACKWARD and (_is_channels_last(args[1]) or _is_channels_last(args[2])):
        return tuple([_to_channels_last(each, factory) for each in out])
    return out


def _is_channels_last(tensor: Any) -> bool:
    import torch

    if tensor.dim() not in (4, 5) or tensor.is_contiguous():
        return False
    layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return bool(tensor.is_contiguous(memory_format=layout))


def _to_channels_last(tensor: Any, make: StridedFactory | None) -> Any:
    import torch

    if tensor is None or tensor.dim() not in (4, 5):
        return tensor
    layout = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    if tensor.is_contiguous(memory_format=layout):
        return tensor
    strides = torch._prims_common.make_channels_last_strides_for(tuple(tensor.shape))
    if make is not None:
        return make(tensor, strides)
    return tensor.fake_mode.fake_like(tensor, tensor.device, strides=strides)
