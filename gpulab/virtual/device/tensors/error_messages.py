"""Errors in PyTorch's own wording, where its shape rules for fake tensors raise others."""

from __future__ import annotations

from typing import Any

from gpulab.errors import CaptureError

# Operators whose shape rule raises only for wrong shapes: their real kernels check shapes before they compute.
_SHAPE_CHECKED = {
    "mm", "addmm", "bmm", "baddbmm", "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "pow", "maximum",
    "minimum", "eq", "ne", "lt", "le", "gt", "ge", "where", "cat", "stack", "masked_fill", "masked_fill_", "mv", "dot",
    "native_layer_norm", "view", "expand", "nll_loss_forward", "mse_loss", "logical_and", "logical_or",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "l1_loss", "copy_", "gather", "index_select",
}  # fmt: skip


def error_of_real_tensors(func: Any, args: Any, kwargs: Any, error: RuntimeError | IndexError) -> Exception:
    """Return the error that real tensors of these sizes would raise; the same error if unknown."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if func.name().partition(".")[0].removeprefix("aten::") not in _SHAPE_CHECKED:
        return error

    def on_cpu(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(on_cpu(each) for each in value)
        if isinstance(value, torch.Tensor):  # one expanded element: it needs no memory
            return torch.zeros((), dtype=value.dtype, device="cpu").expand(tuple(value.shape))
        return value

    with _disable_current_modes():
        try:
            func(*[on_cpu(each) for each in args], **{name: on_cpu(each) for name, each in kwargs.items()})
        except (RuntimeError, IndexError) as real_error:
            if "cpu" not in str(real_error).lower() and "single memory location" not in str(real_error):
                return type(error)(str(real_error)) if isinstance(real_error, type(error)) else real_error
    return error


def in_place_result(func: Any, args: Any) -> tuple[Any] | None:
    """Return the result of an in-place operator (an argument or None) as a 1-tuple; None for other operators."""
    schema = func._schema
    written_indices = [
        index for index, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write
    ]
    if not written_indices:
        return None
    if not schema.returns:
        return (None,)
    return (args[written_indices[0]],) if len(schema.returns) == 1 and written_indices[0] < len(args) else None


def device_mismatch(func: Any, tensors: Any) -> RuntimeError:
    """Return the error for an operator with both GPU and CPU tensors."""
    if "conv" in func.name() and len(tensors) > 1:
        kinds = [f"torch.{'' if each.device.type == 'cpu' else 'cuda.'}FloatTensor" for each in tensors]
        mismatch = "weight" if kinds[0] != kinds[1] else "bias"
        other = kinds[1 if mismatch == "weight" else -1]
        return RuntimeError(f"Input type ({kinds[0]}) and {mismatch} type ({other}) should be the same")
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(dict.fromkeys(str(each.device) for each in tensors))}!"
    )


def incompatible_view() -> RuntimeError:
    """Return the error for a `view` that the strides do not allow; PyTorch's shape rule raises a ValueError."""
    return RuntimeError(
        "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
        "contiguous subspaces). Use .reshape(...) instead."
    )


def invalid_device_index() -> RuntimeError:
    """Return the error for any device index but 0."""
    return RuntimeError(
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        "(the virtual machine has one GPU, cuda:0)"
    )


def forked_process() -> RuntimeError:
    """Return the error for a process forked from the one with the virtual GPU."""
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
        "start method"
    )


def closed_virtual_gpu() -> CaptureError:
    """Return the error for a tensor of a closed virtual GPU."""
    return CaptureError(
        "This tensor belongs to a virtual GPU that is closed.",
        why="it has sizes but no values, and only its own virtual GPU can run operators on it",
        fix="use it inside its `with gpulab.virtual_gpu(...)` block or cell, or create it again in the current one",
    )


def unsupported_operator(name: str) -> CaptureError:
    """Return the error for an operator whose result shape is unknown."""
    return CaptureError(
        f"The virtual GPU does not support the operator {name}.",
        why="the size of its result depends on values, or PyTorch has no shape rule for it",
        fix="run this part on the CPU (`.cpu()` before it), or leave it out of the virtual run",
    )
