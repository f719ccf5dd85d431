"""Names of operators in GPU traces, and the arguments that the cost model needs."""

from __future__ import annotations

from typing import Any

_CONVOLUTION_ARGS = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
_IS_CAUSAL_INDEX = {"aten::_scaled_dot_product_flash_attention": 4, "aten::_scaled_dot_product_efficient_attention": 6}


def profiler_name(packet: str, args: Any) -> str:
    """Return the name that the profiler shows on a GPU."""
    if packet in ("aten::_to_copy",):
        return "aten::copy_"
    if packet == "aten::native_batch_norm" and _by_cudnn(args[0], args[1], args[5]):
        return "aten::cudnn_batch_norm"
    if packet == "aten::native_batch_norm_backward" and _by_cudnn(args[1], args[2], args[7]):
        return "aten::cudnn_batch_norm_backward"
    return packet


def _by_cudnn(tensor: Any, weight: Any, training: Any) -> bool:
    """Return whether PyTorch runs a batch normalisation with cuDNN."""
    import torch

    if weight is None or not torch.backends.cudnn.enabled or tensor.dtype is torch.float64:
        return False
    if tensor.dim() == 2:
        return bool(training) and tensor.shape[0] <= 131070
    return bool(tensor.dim() >= 3 and tensor.shape[0] <= (880801 if training else 65535))


def cost_model_details(name: str, args: Any, kwargs: Any) -> tuple[tuple[str, str], ...]:
    """Return further arguments of an operator that the cost model needs."""
    if name == "aten::convolution":
        return tuple(zip(_CONVOLUTION_ARGS, map(str, args[3:9]), strict=False))
    if name == "aten::convolution_backward":
        pairs = zip((*_CONVOLUTION_ARGS, "output_mask"), map(str, args[4:11]), strict=False)
        return tuple(pairs)
    causal_index = _IS_CAUSAL_INDEX.get(name)
    if causal_index is not None:
        causal = kwargs.get("is_causal", args[causal_index] if len(args) > causal_index else False)
        return (("causal", str(bool(causal))),)
    if name.startswith("aten::_scaled_dot_product_") and name.endswith("_backward"):
        flags = [each for each in args if isinstance(each, bool)]
        return (("causal", str(flags[-1])),) if flags else ()
    return ()
