"""Describe tensors for the op log: sizes, dtype, bytes, layout."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from gpulab.virtual.op_log.ops import TensorInfo


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """Return all tensors among arguments in order, including those in lists."""
    import torch

    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [each for each in value if isinstance(each, torch.Tensor)]
    return tensors


def is_gpu_tensor(value: Any) -> bool:
    """Return whether this is a tensor on the GPU."""
    import torch

    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def describe_tensor(tensor: Any) -> TensorInfo:
    """Return the op log's description of a tensor."""
    import torch

    sizes = tuple(tensor.shape)
    contiguous = tensor.is_contiguous()
    elements = prod(sizes)
    if not contiguous:  # an expanded tensor has fewer elements in memory
        elements = prod(size for size, stride in zip(sizes, tensor.stride(), strict=True) if stride)
    last = False
    if not contiguous and len(sizes) in (4, 5):
        layout = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
        last = tensor.is_contiguous(memory_format=layout)
    return TensorInfo(sizes, str(tensor.dtype)[6:], elements * tensor.element_size(), contiguous, last)


def longest_list_length(values: Iterable[Any]) -> int:
    """Return the length of the longest tensor list among arguments."""
    import torch

    lists = [value for value in values if isinstance(value, list | tuple) and value]
    return max((len(each) for each in lists if isinstance(each[0], torch.Tensor)), default=0)


def is_dense(tensor: Any) -> bool:
    """Return whether the elements fill their memory without holes or overlaps, in some order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
