"""What a tensor of the virtual GPU looks like to the tape: sizes, type, bytes, layout."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from gpulab.virtual.op_log.ops import Tensor


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """All tensors among arguments, those in lists too, in order."""
    import torch

    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found


def on_gpu(value: Any) -> bool:
    """Whether this is a tensor, and lies on the GPU."""
    import torch

    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def seen(tensor: Any) -> Tensor:
    """A tensor as the tape tells it."""
    import torch

    sizes = tuple(tensor.shape)
    contiguous = tensor.is_contiguous()
    elements = prod(sizes)
    if not contiguous:  # of an expanded tensor only what is there must be read
        elements = prod(size for size, stride in zip(sizes, tensor.stride(), strict=True) if stride)
    last = False
    if not contiguous and len(sizes) in (4, 5):
        layout = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
        last = tensor.is_contiguous(memory_format=layout)
    return Tensor(sizes, str(tensor.dtype)[6:], elements * tensor.element_size(), contiguous, last)


def longest(values: Iterable[Any]) -> int:
    """How many tensors the longest list among arguments has."""
    import torch

    lists = [value for value in values if isinstance(value, list | tuple) and value]
    return max((len(each) for each in lists if isinstance(each[0], torch.Tensor)), default=0)


def dense(tensor: Any) -> bool:
    """Whether its elements lie without holes and overlaps, in some order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
