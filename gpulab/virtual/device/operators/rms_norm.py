"""RMS normalisation in one kernel each way, as PyTorch 2.9 and later run it on a GPU.

Without CUDA's kernel PyTorch takes it apart into a dozen operators, above where we are asked.
"""

from __future__ import annotations

import functools
from typing import Any


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """torch.rms_norm of a tensor of the GPU."""
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
        """One operator forward, one backward."""

        @staticmethod
        def forward(ctx: Any, input: Any, weight: Any, dims: int) -> Any:
            """The normalised tensor; of each row its factor is kept."""
            kept = (*input.shape[:-dims], *(1 for _ in range(dims)))
            mode = input.fake_mode
            out, factor = mode.allocate(input, tuple(input.shape)), mode.allocate(input, kept, torch.float32)
            ctx.save_for_backward(input, weight, factor)
            given = (input,) if weight is None else (input, weight)
            mode.recorder.op("aten::_fused_rms_norm", given, {}, (out, factor))
            return out

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: Any) -> Any:
            """Gradients of input and weight."""
            input, weight, factor = ctx.saved_tensors
            made = [each.fake_mode.allocate(each, tuple(each.shape)) for each in (input, weight) if each is not None]
            given = [each for each in (grad, input, factor, weight) if each is not None]
            input.fake_mode.recorder.op("aten::_fused_rms_norm_backward", given, {}, made)
            return made[0], made[1] if weight is not None else None, None

    return RmsNorm
