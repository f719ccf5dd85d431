"""How many rows of a tensor are copies of other rows, from its bytes in CPU memory.

Rows are hashed by their first and last words, and a sample of equal hashes is compared byte by byte. No operator runs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.intervals import Ints

_MIN_ROWS, _MAX_BYTES = 16, 1 << 26
_MIN_ROW_BYTES, _MIN_INTEGER_ROW_BYTES = 8, 32  # rows of a few integers, such as classes, are equal by chance
_HASHED_WORDS = 8  # of 4 bytes, at either end of a row
_COMPARED_ROWS = 128
_FACTORS = np.random.default_rng(0).integers(1, 1 << 63, 2 * _HASHED_WORDS, dtype=np.uint64)
_MOST_OUTPUTS, _OUTPUT_BYTES = 8, 256

Matrix = npt.NDArray[np.uint32]


def distinct_fraction(tensor: Any, leading: int) -> float | None:
    """Return distinct rows / rows; None if the bytes cannot be read, or if there are few rows or short ones.

    leading: number of dimensions that count rows; the others are the content of a row.
    """
    import torch

    kind: Any = torch.Tensor
    if type(tensor) is not torch.Tensor or not _is_readable(tensor) or kind.dim(tensor) <= leading:
        return None
    rows = int(np.prod(kind.size(tensor)[:leading]))
    size = kind.numel(tensor) * kind.element_size(tensor)
    least = _MIN_ROW_BYTES if kind.is_floating_point(tensor) else _MIN_INTEGER_ROW_BYTES
    if rows < _MIN_ROWS or size > _MAX_BYTES or size % (4 * rows) or size // rows < least:
        return None
    # The caller holds the tensor, which keeps its memory alive.
    memory = (ctypes.c_char * size).from_address(kind.data_ptr(tensor))
    return _distinct_fraction(np.frombuffer(memory, np.uint32).reshape(rows, -1))


def first_bytes(output: Any) -> tuple[bytes, ...]:
    """Return the first bytes of the tensors in an output that are readable, to compare it with another one."""
    import torch

    kind: Any = torch.Tensor
    parts, contents = [output], list[bytes]()
    while parts and len(contents) < _MOST_OUTPUTS:
        part = parts.pop()
        if type(part) in (tuple, list):
            parts += part[:_MOST_OUTPUTS]
        elif issubclass(type(part), dict):
            parts += list(dict.values(part))[:_MOST_OUTPUTS]
        elif is_tensor(type(part)) and _is_readable(part):
            size = kind.numel(part) * kind.element_size(part)
            contents.append(ctypes.string_at(kind.data_ptr(part), min(size, _OUTPUT_BYTES)))
    return tuple(contents)


def _is_readable(tensor: Any) -> bool:
    """Whether the tensor's elements lie one after the other in memory of the CPU."""
    import torch

    kind: Any = torch.Tensor
    if kind.layout.__get__(tensor) is not torch.strided or not kind.is_cpu.__get__(tensor):
        return False
    return bool(kind.is_contiguous(tensor) and not kind.is_conj(tensor) and not kind.is_neg(tensor) and _size(tensor))


def _size(tensor: Any) -> int:
    """Return the bytes of a tensor that its storage really holds; 0 for a fake or an empty one."""
    import torch

    kind: Any = torch.Tensor
    size = kind.numel(tensor) * kind.element_size(tensor)
    end = kind.storage_offset(tensor) * kind.element_size(tensor) + size
    return int(size) if kind.data_ptr(tensor) and kind.untyped_storage(tensor).nbytes() >= end else 0


def _distinct_fraction(matrix: Matrix) -> float | None:
    ends = np.concatenate([matrix[:, :_HASHED_WORDS], matrix[:, -_HASHED_WORDS:]], axis=1).astype(np.uint64)
    hashes = (ends * _FACTORS[: ends.shape[1]]).sum(axis=1, dtype=np.uint64)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    return len(first) / len(matrix) if _are_equal(matrix, first[group]) else None


def _are_equal(matrix: Matrix, originals: Ints) -> bool:
    """Whether rows equal the first row with the same hash in all of their bytes: a sample of them is compared."""
    copies = np.flatnonzero(originals != np.arange(len(matrix)))
    copies = copies[:: max(1, len(copies) // _COMPARED_ROWS)]
    return bool((matrix[copies] == matrix[originals[copies]]).all())
