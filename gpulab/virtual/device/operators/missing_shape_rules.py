"""Operators without a shape rule in PyTorch, which programs use on GPUs all the same."""

from __future__ import annotations

from typing import Any

from gpulab.virtual.device.tensors.error_messages import on_two_devices
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type


def specials() -> dict[Any, Any]:
    """The operators that this PyTorch has, with what is done for each."""
    import torch

    aten = torch.ops.aten
    found: dict[Any, Any] = {}
    own = {
        "_ctc_loss.default": _ctc,
        "_ctc_loss.Tensor": _ctc,
        "_use_cudnn_ctc_loss.default": _no,
        "_use_cudnn_ctc_loss.Tensor": _no,
        "native_group_norm.default": _group_norm,
    }
    for name, function in own.items():
        packet, _, overload = name.partition(".")
        found[getattr(getattr(aten, packet), overload)] = function
    for name, place in _LIKE.items():
        packet, _, overload = name.partition(".")
        if hasattr(aten, packet):
            found[getattr(getattr(aten, packet), overload)] = _as(place)
    return found


# Backward operators whose result has the sizes of one of their arguments.
_LIKE = {
    "_ctc_loss_backward.default": 1,
    "_ctc_loss_backward.Tensor": 1,
    "multi_margin_loss_backward.default": 1,
    "multilabel_margin_loss_backward.default": 1,
    "fractional_max_pool2d_backward.default": 1,
    "fractional_max_pool3d_backward.default": 1,
    "rrelu_with_noise_backward.default": 1,
}


def _as(place: int) -> Any:
    def special(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        made = mode.allocate(args[place], tuple(args[place].shape))
        mode.recorder.op(func.name().partition(".")[0], args, kwargs, made)
        return made

    return special


def _no(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    return False


def _ctc(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    chances, targets = args[0], args[1]
    if not isinstance(chances, fake_tensor_type()):
        raise on_two_devices(func, [chances])
    steps, batch = int(chances.shape[0]), int(chances.shape[1]) if chances.dim() == 3 else 1
    longest = int(targets.shape[-1]) if targets.dim() == 2 else -(-int(targets.shape[0]) // batch)
    losses = mode.allocate(chances, (batch,))
    alphas = mode.allocate(chances, (batch, steps, 2 * longest + 1))
    mode.recorder.op("aten::_ctc_loss", (chances,), {}, (losses, alphas))
    return losses, alphas


def _group_norm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    # PyTorch's rule takes it apart, and stumbles over tensors of three dimensions.
    x, weight, bias, batch, channels, _, groups = args[:7]
    if any(isinstance(each, torch_tensor()) and not isinstance(each, fake_tensor_type()) for each in (x, weight, bias)):
        raise on_two_devices(func, [x])
    if channels % groups:
        raise RuntimeError("Expected number of channels in input to be divisible by num_groups, but got input of shape "
                           f"{list(x.shape)} and num_groups={groups}")  # fmt: skip
    kept = (batch, groups)
    made = mode.allocate(x, tuple(x.shape)), mode.allocate(x, kept), mode.allocate(x, kept)
    mode.recorder.op("aten::native_group_norm", args, kwargs, made)
    return made


def torch_tensor() -> Any:
    """torch.Tensor."""
    import torch

    return torch.Tensor


def kernels() -> dict[str, Any]:
    """Operators in one piece that PyTorch would take apart in a way that only suits real tensors."""
    return {"ctc_loss.IntList": _ctc_whole, "ctc_loss.Tensor": _ctc_whole}


def _ctc_whole(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    import torch

    spans, lengths = (
        each.cpu().tolist() if isinstance(each, torch.Tensor) else list(each)
        for each in (input_lengths, target_lengths)
    )
    losses = torch.ops.aten._ctc_loss(log_probs, targets, spans, lengths, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), torch.zeros((), device=losses.device), losses)
    if reduction == 1:
        return (losses / torch.tensor(lengths, device=losses.device).clamp_min(1)).mean()
    return losses.sum() if reduction == 2 else losses
