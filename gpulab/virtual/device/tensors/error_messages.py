"""PyTorch's own words for a program's mistakes, where its shape rules for fake tensors have others."""

from __future__ import annotations

from typing import Any

from gpulab.errors import CaptureError

# Operators whose errors, from a shape rule, are about shapes for sure: their real kernels refuse before they compute.
_CHECKED = {
    "mm", "addmm", "bmm", "baddbmm", "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "pow", "maximum",
    "minimum", "eq", "ne", "lt", "le", "gt", "ge", "where", "cat", "stack", "masked_fill", "masked_fill_", "mv", "dot",
    "native_layer_norm", "view", "expand", "nll_loss_forward", "mse_loss", "logical_and", "logical_or",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "l1_loss", "copy_", "gather", "index_select",
}  # fmt: skip


def reworded(func: Any, args: Any, kwargs: Any, error: RuntimeError | IndexError) -> Exception:
    """The error that real tensors of these sizes would raise."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if func.name().partition(".")[0].removeprefix("aten::") not in _CHECKED:
        return error

    def real(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(real(each) for each in value)
        if isinstance(value, torch.Tensor):  # one element, shown as many: it needs no memory
            return torch.zeros((), dtype=value.dtype, device="cpu").expand(tuple(value.shape))
        return value

    with _disable_current_modes():
        try:
            func(*[real(each) for each in args], **{name: real(each) for name, each in kwargs.items()})
        except (RuntimeError, IndexError) as told:
            if "cpu" not in str(told).lower() and "single memory location" not in str(told):
                return type(error)(str(told)) if isinstance(told, type(error)) else told
    return error


def written(func: Any, args: Any) -> tuple[Any] | None:
    """What an operator that only changes its arguments gives: one of them, or nothing; None for other operators."""
    schema = func._schema
    changed = [place for place, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write]
    if not changed:
        return None
    if not schema.returns:
        return (None,)
    return (args[changed[0]],) if len(schema.returns) == 1 and changed[0] < len(args) else None


def on_two_devices(func: Any, given: Any) -> RuntimeError:
    """For tensors on GPU and CPU that meet in an operator."""
    if "conv" in func.name() and len(given) > 1:
        kinds = [f"torch.{'' if each.device.type == 'cpu' else 'cuda.'}FloatTensor" for each in given]
        what = "weight" if kinds[0] != kinds[1] else "bias"
        other = kinds[1 if what == "weight" else -1]
        return RuntimeError(f"Input type ({kinds[0]}) and {what} type ({other}) should be the same")
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(dict.fromkeys(str(each.device) for each in given))}!"
    )


def not_a_view() -> RuntimeError:
    """For `view` of a tensor that does not lie so; PyTorch's shape rule raises a ValueError."""
    return RuntimeError(
        "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
        "contiguous subspaces). Use .reshape(...) instead."
    )


def no_such_device() -> RuntimeError:
    """For a second GPU where there is one."""
    return RuntimeError(
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        "(the virtual machine has one GPU, cuda:0)"
    )


def forked() -> RuntimeError:
    """For a process forked from the one that has the GPU."""
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
        "start method"
    )


def outlived() -> CaptureError:
    """For a tensor of a virtual GPU that is gone."""
    return CaptureError(
        "This tensor is on a virtual GPU that has been closed.",
        why="it has sizes but no numbers, and only its own virtual GPU can compute with it",
        fix="use it inside its `with gpulab.virtual_gpu(...)` block or cell, or create it anew",
    )


def unsupported(name: str) -> CaptureError:
    """For an operator that cannot be imagined."""
    return CaptureError(
        f"The virtual GPU cannot imagine {name}.",
        why="the size of its result depends on numbers, or PyTorch has no shape rule for it",
        fix="run this part on the CPU (`.cpu()` before it), or leave it out of the virtual run",
    )
