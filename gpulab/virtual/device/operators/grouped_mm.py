"""`grouped_mm`: one matrix product per group, as the experts of a mixture compute them.

On Hopper and Blackwell, PyTorch runs bfloat16 products of all groups as one kernel. In other cases it copies the
offsets to the host and multiplies group after group. Where the groups end depends on data: equal groups are assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.tensors.true_values import true_values
from gpulab.virtual.op_log.ops import CopyDirection

_ONE_KERNEL_GENERATIONS = (90, 100)
_LEAST_GENERATION = 80


def overrides(generation: int, assumptions: Assumptions) -> dict[Any, Any]:
    """Return the implementation by operator, on a GPU of this compute capability (80 for 8.0)."""
    import torch

    if not hasattr(torch.ops.aten, "_grouped_mm"):  # since torch 2.8
        return {}
    return {torch.ops.aten._grouped_mm.default: _grouped_mm(generation, assumptions)}


def _grouped_mm(generation: int, assumptions: Assumptions) -> Callable[..., Any]:
    def grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        import torch

        left, right = args[0], args[1]
        offsets = args[2] if len(args) > 2 else kwargs.get("offs")
        _check(left, right, offsets, generation)
        out_dtype = kwargs.get("out_dtype") or (args[4] if len(args) > 4 else None) or left.dtype
        if offsets is not None and true_values(offsets) is None:
            assumptions.add("how many rows each group of grouped_mm has", "the same number")
        if left.dtype is torch.bfloat16 and generation in _ONE_KERNEL_GENERATIONS:
            out = mode.allocate(left, _result_sizes(left, right, offsets), out_dtype)
            mode.recorder.op("aten::_grouped_mm", (left, right), {}, out, flops=_flops(left, right))
            return out
        return _group_by_group(mode, left, right, offsets, out_dtype)

    return grouped_mm


def _check(left: Any, right: Any, offsets: Any, generation: int) -> None:
    """Raise PyTorch's errors for arguments that its CUDA kernel refuses."""
    if generation < _LEAST_GENERATION:
        raise RuntimeError("torch.grouped_mm is only supported on CUDA devices with compute capability >= 8.0")
    if left.dtype is not right.dtype:
        raise RuntimeError(f"Expected mat_a and mat_b to have the same dtype, got {left.dtype} and {right.dtype}.")
    if (offsets is None) == (left.dim() == 2 or right.dim() == 2):
        raise RuntimeError("Have to provide offsets for 2d multiplicands, and only for these")
    if (left.dim() == 3 or right.dim() == 3) and left.shape[-1] != right.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")


def _result_sizes(left: Any, right: Any, offsets: Any) -> tuple[int, ...]:
    rows, columns = int(left.shape[-2]), int(right.shape[-1])
    if left.dim() != right.dim():
        return rows, columns
    groups = int(offsets.shape[0]) if left.dim() == 2 else int(left.shape[0])
    return groups, rows, columns


def _flops(left: Any, right: Any) -> int:
    batch = int(left.shape[0]) if left.dim() == right.dim() == 3 else 1
    return 2 * batch * int(left.shape[-2]) * int(left.shape[-1]) * int(right.shape[-1])


def _group_by_group(mode: Any, left: Any, right: Any, offsets: Any, dtype: Any) -> Any:
    import torch

    mode._inner.depth = 0
    with mode:
        out = torch.empty(_result_sizes(left, right, offsets), dtype=dtype, device=left.device)
        if offsets is None:
            return torch.bmm(left, right)
        mode.recorder.copy("aten::copy_", CopyDirection.DEVICE_TO_HOST, offsets.numel() * offsets.element_size())
        for index, rows in enumerate(_group_slices(left, right, offsets)):
            if left.dim() == right.dim():
                torch.mm(left[:, rows], right[rows], out=out[index])
            elif left.dim() == 2:
                torch.mm(left[rows], right[index], out=out[rows])
            else:
                torch.mm(left[index], right[:, rows], out=out[:, rows])
    return out


def _group_slices(left: Any, right: Any, offsets: Any) -> list[slice]:
    """Return the rows (or columns) of each group: as the offsets say, or equal groups."""
    values, groups = true_values(offsets), int(offsets.shape[0])
    size = int(right.shape[1]) if left.dim() == 3 else int(left.shape[0 if right.dim() == 3 else 1])
    ends = values.tolist() if values is not None else [size * (index + 1) // groups for index in range(groups)]
    return [slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
