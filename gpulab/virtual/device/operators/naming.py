"""How operators are called on a GPU, and what of their arguments their price may need."""

from __future__ import annotations

from typing import Any

_CONVOLUTION = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
_ATTENTION = {"aten::_scaled_dot_product_flash_attention": 4, "aten::_scaled_dot_product_efficient_attention": 6}


def told_name(packet: str, args: Any) -> str:
    """The name a profiler would print on a GPU, where that differs."""
    if packet in ("aten::_to_copy",):
        return "aten::copy_"
    if packet == "aten::native_batch_norm" and _by_cudnn(args[0], args[1], args[5]):
        return "aten::cudnn_batch_norm"
    if packet == "aten::native_batch_norm_backward" and _by_cudnn(args[1], args[2], args[7]):
        return "aten::cudnn_batch_norm_backward"
    return packet


def _by_cudnn(tensor: Any, weight: Any, training: Any) -> bool:
    """Whether PyTorch gives a batch normalisation to cuDNN."""
    import torch

    if weight is None or not torch.backends.cudnn.enabled or tensor.dtype is torch.float64:
        return False
    if tensor.dim() == 2:
        return bool(training) and tensor.shape[0] <= 131070
    return bool(tensor.dim() >= 3 and tensor.shape[0] <= (880801 if training else 65535))


def details(name: str, args: Any, kwargs: Any) -> tuple[tuple[str, str], ...]:
    """What else the price of an operator may need."""
    if name == "aten::convolution":
        return tuple(zip(_CONVOLUTION, map(str, args[3:9]), strict=False))
    if name == "aten::convolution_backward":
        given = zip((*_CONVOLUTION, "output_mask"), map(str, args[4:11]), strict=False)
        return tuple(given)
    where = _ATTENTION.get(name)
    if where is not None:
        causal = kwargs.get("is_causal", args[where] if len(args) > where else False)
        return (("causal", str(bool(causal))),)
    if name.startswith("aten::_scaled_dot_product_") and name.endswith("_backward"):
        flags = [each for each in args if isinstance(each, bool)]
        return (("causal", str(flags[-1])),) if flags else ()
    return ()
