"""The memory of tensors on the CPU, and how often they have changed. No operator runs, and no code of the user's."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple


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


def read_bytes(memory: Memory, limit: int) -> bytes:
    """Return the bytes of a memory range, at most so many. The caller holds the tensor, which keeps it alive."""
    return ctypes.string_at(memory.address, min(memory.bytes, limit))


def version_of(tensor: Any) -> int:
    """Return how often a tensor has been changed in place; 0 for one of inference mode, which does not count."""
    import torch

    kind: Any = torch.Tensor
    return 0 if kind.is_inference(tensor) else int(kind._version.__get__(tensor))
