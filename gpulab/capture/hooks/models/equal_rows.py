"""How many rows of a tensor are copies of other rows, from its bytes in CPU memory.

Rows are hashed by their first and last words, and a sample of equal hashes is compared byte by byte. No operator runs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.models.tensor_memory import Memory, dense_memory, read_bytes
from gpulab.intervals import Ints

# Below, equal rows say little; above, looking for them takes more than some milliseconds.
_MIN_ROWS, _MAX_ROWS, _MAX_BYTES = 16, 1 << 16, 1 << 26
_MIN_ROW_BYTES, _MIN_INTEGER_ROW_BYTES = 8, 32  # rows of a few integers, such as classes, are equal by chance
_HASHED_WORDS = 8  # of 4 bytes, at either end of a row
_COMPARED_ROWS = 128
_FACTORS = np.random.default_rng(0).integers(1, 1 << 63, 2 * _HASHED_WORDS, dtype=np.uint64)
_MOST_OUTPUTS = 8
_MOST_HASHED_BYTES = 1 << 23
_WHOLE_BYTES, _PIECES, _PIECE_BYTES = 4096, 32, 64  # of an output: all, or evenly spaced pieces of it

Matrix = npt.NDArray[np.uint32]


def distinct_fraction(tensor: Any, leading: int) -> float | None:
    """Return distinct rows / rows; None if the bytes cannot be read, or if there are few rows, too many, or short ones.

    leading: number of dimensions that count rows; the others are the content of a row.
    """
    import torch

    kind: Any = torch.Tensor
    memory = dense_memory(tensor) if type(tensor) is torch.Tensor else None
    if memory is None or not kind.is_contiguous(tensor) or kind.dim(tensor) <= leading:
        return None
    rows = int(np.prod(kind.size(tensor)[:leading]))
    least = _MIN_ROW_BYTES if kind.is_floating_point(tensor) else _MIN_INTEGER_ROW_BYTES
    if not _MIN_ROWS <= rows <= _MAX_ROWS or memory.bytes > _MAX_BYTES:
        return None
    if memory.bytes % (4 * rows) or memory.bytes // rows < least:
        return None
    # The caller holds the tensor, which keeps its memory alive.
    content: Any = (ctypes.c_char * memory.bytes).from_address(memory.address)
    return _distinct_fraction(np.frombuffer(content, np.uint32).reshape(rows, -1))


def sampled_hashes(output: Any) -> tuple[int, ...]:
    """Return a hash of each tensor in an output or input that can be read, to compare it with another one.

    A large tensor is hashed in evenly spaced pieces.
    """
    parts, hashes = [output], list[int]()
    while parts and len(hashes) < _MOST_OUTPUTS:
        part = parts.pop()
        if type(part) in (tuple, list):
            parts += part[:_MOST_OUTPUTS]
        elif issubclass(type(part), dict):
            parts += list(dict.values(part))[:_MOST_OUTPUTS]
        elif is_tensor(type(part)) and (memory := dense_memory(part)) is not None:
            hashes.append(hash(_sample(memory)))
    return tuple(hashes)


def content_hash(tensor: Any) -> int | None:
    """Return a hash of the bytes of a tensor, its shape and strides; None if they cannot be read, or are too many."""
    import torch

    kind: Any = torch.Tensor
    memory = dense_memory(tensor)
    if memory is None or memory.bytes > _MOST_HASHED_BYTES:
        return None
    layout = kind.dtype.__get__(tensor), tuple(kind.size(tensor)), tuple(kind.stride(tensor))
    return hash((layout, read_bytes(memory, memory.bytes)))


def _sample(memory: Memory) -> bytes:
    if memory.bytes <= _WHOLE_BYTES:
        return read_bytes(memory, _WHOLE_BYTES)
    starts = np.linspace(0, memory.bytes - _PIECE_BYTES, _PIECES).astype(int).tolist()
    return b"".join([ctypes.string_at(memory.address + start, _PIECE_BYTES) for start in starts])


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
