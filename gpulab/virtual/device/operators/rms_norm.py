"""RMS normalisation as one forward and one backward kernel, as PyTorch 2.9 and later run it on a GPU.

Without the CUDA kernel, PyTorch decomposes it into a dozen operators before the dispatch mode sees it.
"""

from __future__ import annotations

import functools
from typing import Any


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """torch.rms_norm for a tensor on the virtual GPU."""
    shape = tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"Given normalized_shape={list(shape)}, expected input with shape "
            f"[*{''.join(f', {each}' for each in shape)}], but got input of size{list(input.shape)}"
        )
    return _function().apply(input, weight, len(shape))


@functools.cache
def _function() -> Any:
    import torch

    class RmsNorm(torch.autograd.Function):
        """One operator in forward, one in backward."""

        @staticmethod
        def forward(ctx: Any, input: Any, weight: Any, dims: int) -> Any:
            """Return the normalised tensor; save the factor of each row."""
            factor_shape = (*input.shape[:-dims], *(1 for _ in range(dims)))
            mode = input.fake_mode
            out, factor = mode.allocate(input, tuple(input.shape)), mode.allocate(input, factor_shape, torch.float32)
            ctx.save_for_backward(input, weight, factor)
            inputs = (input,) if weight is None else (input, weight)
            mode.recorder.op("aten::_fused_rms_norm", inputs, {}, (out, factor))
            return out

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            """Return the gradients of input and weight."""
            input, weight, factor = ctx.saved_tensors
            grads = [each.fake_mode.allocate(each, tuple(each.shape)) for each in (input, weight) if each is not None]
            inputs = [each for each in (grad, input, factor, weight) if each is not None]
            input.fake_mode.recorder.op("aten::_fused_rms_norm_backward", inputs, {}, grads)
            return grads[0], grads[1] if weight is not None else None, None

    return RmsNorm
