"""The memory of tensors on the CPU, and how often they have changed. No operator runs, and no code of the user's."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.capture.protection.guard import is_from_outside


class Memory(NamedTuple):
    """Where the elements of a tensor are."""

    address: int
    bytes: int


def dense_memory(tensor: Any) -> Memory | None:
    """Return the memory of a tensor whose elements fill one range of it, in any order; None for any other tensor.

    A storage may be shared, shrunk by the user's code, or missing, as that of a fake tensor.
    """
    import torch

    kind: Any = torch.Tensor
    if kind.layout.__get__(tensor) is not torch.strided or kind.is_nested.__get__(tensor):
        return None
    if not kind.is_cpu.__get__(tensor) or kind.is_conj(tensor) or kind.is_neg(tensor):
        return None
    size, itemsize = kind.numel(tensor), kind.element_size(tensor)
    span = 1 + sum([(n - 1) * stride for n, stride in zip(kind.size(tensor), kind.stride(tensor), strict=True)])
    address, end = kind.data_ptr(tensor), (kind.storage_offset(tensor) + size) * itemsize
    if not size or span != size or not address or kind.untyped_storage(tensor).nbytes() < end:
        return None
    return Memory(address, size * itemsize)


def array_of(tensor: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return a view of the elements of a tensor in CPU memory, which the caller keeps alive; None for any other tensor.

    `Tensor.numpy()` would forbid the user's code to resize the tensor later.
    """
    import torch

    kind: Any = torch.Tensor
    if kind.layout.__get__(tensor) is not torch.strided or not kind.is_cpu.__get__(tensor) or kind.is_neg(tensor):
        return None
    shape = tuple(kind.size(tensor))
    strides = [stride * dtype.itemsize for stride in kind.stride(tensor)]
    span = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + dtype.itemsize
    offset = kind.storage_offset(tensor) * dtype.itemsize
    try:
        address, available = kind.data_ptr(tensor), kind.untyped_storage(tensor).nbytes()
    except RuntimeError as error:  # a tensor without memory, as inside of torch.func transforms
        if is_from_outside(error):
            raise
        return None
    if not address or 0 in shape or offset + span > available:  # the user's code can shrink a storage
        return None
    memory = {"shape": shape, "typestr": dtype.str, "strides": tuple(strides), "data": (address, True), "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=memory))


def read_bytes(memory: Memory, limit: int) -> bytes:
    """Return the bytes of a memory range, at most so many. The caller holds the tensor, which keeps it alive."""
    return ctypes.string_at(memory.address, min(memory.bytes, limit))


def version_of(tensor: Any) -> int:
    """Return how often a tensor has been changed in place; 0 for one of inference mode, which does not count."""
    import torch

    kind: Any = torch.Tensor
    return 0 if kind.is_inference(tensor) else int(kind._version.__get__(tensor))
