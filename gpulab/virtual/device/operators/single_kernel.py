"""Operators that PyTorch runs as one kernel on CUDA tensors but decomposes for fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.virtual.device.operators import attention_kernels, cudnn_rnn, missing_shape_rules, rnn_cells
from gpulab.virtual.device.operators.rms_norm import rms_norm
from gpulab.virtual.device.tensors import assumed_values


def kernels(sm: int) -> dict[str, Callable[..., Any]]:
    """Return these operators by aten name, as a GPU of this compute capability (80 for 8.0) runs them."""
    import torch

    kernels_by_name: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": attention_kernels.attention_for(sm),
        "dropout": _dropout,
        "softmax.int": _softmax("_softmax"),
        "log_softmax.int": _softmax("_log_softmax"),
        "one_hot": _one_hot,
        "isclose": _isclose,
        **cudnn_rnn.kernels(),
        **rnn_cells.kernels(),
        **missing_shape_rules.kernels(),
    }
    if hasattr(torch.ops.aten, "_fused_rms_norm"):  # since torch 2.9
        kernels_by_name["rms_norm"] = rms_norm
    return kernels_by_name


def _dropout(input: Any, p: float, train: bool) -> Any:
    import torch

    if not train or p == 0 or not input.numel():
        return input
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    return torch.ops.aten.native_dropout(input, p, train)[0]


def _softmax(name: str) -> Callable[..., Any]:
    def softmax(self: Any, dim: int, dtype: Any = None) -> Any:
        import torch

        kernel = getattr(torch.ops.aten, name)
        if self.dtype is torch.float16 and dtype is torch.float32:
            return kernel(self, dim, True)  # one kernel reads float16 and writes float32
        return kernel(self if dtype is None else self.to(dtype), dim, False)

    return softmax


def _isclose(self: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    result = self == other
    assumed_values.set_known_value(result, True)  # torch.equal and torch.allclose are assumed to be true, too
    return result


def _one_hot(self: Any, num_classes: int = -1) -> Any:
    import torch

    if self.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if num_classes == -1:
        num_classes = int(self.max().item()) + 1
    zeros = torch.zeros((*self.shape, num_classes), dtype=self.dtype, device=self.device)
    return zeros.scatter_(-1, self.unsqueeze(-1), 1)
