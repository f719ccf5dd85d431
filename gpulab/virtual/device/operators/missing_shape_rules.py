"""Implementations of operators that have no shape rule in PyTorch but are used on GPUs."""

from __future__ import annotations

from typing import Any

from gpulab.virtual.device.tensors.error_messages import device_mismatch
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type


def overrides() -> dict[Any, Any]:
    """Return the implementations by operator; only operators that this PyTorch has."""
    import torch

    aten = torch.ops.aten
    implementations: dict[Any, Any] = {}
    functions = {
        "_ctc_loss.default": _ctc,
        "_ctc_loss.Tensor": _ctc,
        "_use_cudnn_ctc_loss.default": _false,
        "_use_cudnn_ctc_loss.Tensor": _false,
        "native_group_norm.default": _group_norm,
    }
    for name, function in functions.items():
        packet, _, overload = name.partition(".")
        implementations[getattr(getattr(aten, packet), overload)] = function
    for name, index in _SHAPED_LIKE.items():
        packet, _, overload = name.partition(".")
        if hasattr(aten, packet):
            implementations[getattr(getattr(aten, packet), overload)] = _like_argument(index)
    return implementations


# Backward operators whose result has the shape of one argument, with the index of that argument.
_SHAPED_LIKE = {
    "_ctc_loss_backward.default": 1,
    "_ctc_loss_backward.Tensor": 1,
    "multi_margin_loss_backward.default": 1,
    "multilabel_margin_loss_backward.default": 1,
    "fractional_max_pool2d_backward.default": 1,
    "fractional_max_pool3d_backward.default": 1,
    "rrelu_with_noise_backward.default": 1,
}


def _like_argument(index: int) -> Any:
    def special(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        out = mode.allocate(args[index], tuple(args[index].shape))
        mode.recorder.op(func.name().partition(".")[0], args, kwargs, out)
        return out

    return special


def _false(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    return False


def _ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    log_probs, targets = args[0], args[1]
    if not isinstance(log_probs, fake_tensor_type()):
        raise device_mismatch(func, [log_probs])
    steps, batch = int(log_probs.shape[0]), int(log_probs.shape[1]) if log_probs.dim() == 3 else 1
    longest = int(targets.shape[-1]) if targets.dim() == 2 else -(-int(targets.shape[0]) // batch)
    losses = mode.allocate(log_probs, (batch,))
    alphas = mode.allocate(log_probs, (batch, steps, 2 * longest + 1))
    mode.recorder.op("aten::_ctc_loss", (log_probs,), {}, (losses, alphas))
    return losses, alphas


def _group_norm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    # PyTorch's shape rule decomposes it and fails for tensors with three dimensions.
    x, weight, bias, batch, channels, _, groups = args[:7]
    if any(isinstance(each, tensor_type()) and not isinstance(each, fake_tensor_type()) for each in (x, weight, bias)):
        raise device_mismatch(func, [x])
    if channels % groups:
        raise RuntimeError("Expected number of channels in input to be divisible by num_groups, but got input of shape "
                           f"{list(x.shape)} and num_groups={groups}")  # fmt: skip
    stats_shape = (batch, groups)
    results = mode.allocate(x, tuple(x.shape)), mode.allocate(x, stats_shape), mode.allocate(x, stats_shape)
    mode.recorder.op("aten::native_group_norm", args, kwargs, results)
    return results


def tensor_type() -> Any:
    """Return torch.Tensor."""
    import torch

    return torch.Tensor


def kernels() -> dict[str, Any]:
    """Return operators that PyTorch would decompose in a way that needs real tensors, by aten name."""
    return {"ctc_loss.IntList": _ctc_loss, "ctc_loss.Tensor": _ctc_loss}


def _ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    import torch

    input_sizes, target_sizes = (
        each.cpu().tolist() if isinstance(each, torch.Tensor) else list(each)
        for each in (input_lengths, target_lengths)
    )
    losses = torch.ops.aten._ctc_loss(log_probs, targets, input_sizes, target_sizes, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), torch.zeros((), device=losses.device), losses)
    if reduction == 1:
        return (losses / torch.tensor(target_sizes, device=losses.device).clamp_min(1)).mean()
    return losses.sum() if reduction == 2 else losses
