"""Matrices of mostly zeros that modules get: a dense adjacency matrix, a bag of words, one-hot codes.

A sample of the elements is read from CPU memory, and all of them if almost all are zero. No operator runs.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpulab.capture.hooks.models.called_code import may_call, parts_of_class
from gpulab.capture.hooks.models.tensor_memory import dense_memory, version_of

_MIN_ROWS, _MIN_ELEMENTS = 64, 1 << 17  # smaller ones take little time
_MIN_ZERO_FRAC = 0.95
_SAMPLED = 4096  # elements
_MASKING = ("where", "masked_fill", "masked_fill_", "masked_select", "masked_scatter", "nonzero")
_COUNTED = 1 << 26  # of larger matrices, the sample is all that is read


class SparseProduct(NamedTuple):
    """A product that could skip the zeros of its first factor. Equal products take equally long."""

    rows: int
    columns: int
    width: int  # columns of the result
    nonzero: int  # estimated number of elements of the first factor that are not zero
    with_gradient: bool  # of the second factor


class ZeroMatrix(NamedTuple):
    """A dense matrix of float32 numbers that are mostly zeros."""

    reference: weakref.ref[Any]
    rows: int
    columns: int
    zero_frac: float


@dataclass
class ProductWork:
    """The calls of one module that get such a matrix."""

    module: weakref.ref[Any]
    matrix: ZeroMatrix
    product: SparseProduct
    location: str | None
    calls: int = 0
    total_ns: int = 0  # of these calls


class ZeroMatrices:
    """The matrices of mostly zeros that the modules of one step get."""

    def __init__(self) -> None:
        self.products: dict[tuple[int, SparseProduct], ProductWork] = {}
        self.calls = 0
        self._matrices: dict[tuple[int, int], ZeroMatrix | None] = {}  # by id and version of the tensor

    @property
    def references(self) -> list[weakref.ref[Any]]:
        """References to these matrices."""
        return [work.matrix.reference for work in self.products.values()]

    def among(self, tensors: list[Any]) -> list[ZeroMatrix]:
        """Return such matrices among these tensors."""
        matrices = []
        for tensor in tensors:
            key = id(tensor), version_of(tensor)
            matrix = self._matrices.get(key)
            if key not in self._matrices or (matrix is not None and matrix.reference() is not tensor):
                self._matrices[key] = matrix = zero_matrix(tensor)
            if matrix is not None:
                matrices.append(matrix)
        return matrices

    def add(self, module: Any, matrices: list[ZeroMatrix], output: Any, location: str | None, dur_ns: int) -> None:
        """Note a call of a module, if its output may be a product with the matrices."""
        self.calls += 1
        for matrix in matrices:
            product = sparse_product(matrix, output) if multiplies(module) else None
            if product is not None:
                work = ProductWork(weakref.ref(module), matrix, product, location)
                work = self.products.setdefault((id(module), product), work)
                work.calls += 1
                work.total_ns += dur_ns


def multiplies(module: Any) -> bool:
    """Whether the code of a module may multiply with its inputs: a linear layer, or code that does not mask."""
    from torch import nn

    kind = type(module)
    if kind.__module__.startswith("torch.nn."):
        return kind is nn.Linear
    return not may_call(_MASKING, parts_of_class(kind))


def zero_matrix(tensor: Any) -> ZeroMatrix | None:
    """Describe a matrix without a gradient if almost all of its elements are zero; None for any other tensor."""
    import torch

    kind: Any = torch.Tensor
    if type(tensor) is not torch.Tensor or kind.dim(tensor) != 2 or kind.requires_grad.__get__(tensor):
        return None
    rows, columns = (int(size) for size in kind.size(tensor))
    if rows < _MIN_ROWS or columns < _MIN_ROWS or rows * columns < _MIN_ELEMENTS:
        return None
    memory = dense_memory(tensor) if kind.dtype.__get__(tensor) is torch.float32 else None
    if memory is None:
        return None
    content: Any = (ctypes.c_char * memory.bytes).from_address(memory.address)  # the caller holds the tensor
    elements = np.frombuffer(content, np.uint32)
    sample = elements[_positions(len(elements), columns)]
    nonzero_frac = int(np.count_nonzero(sample)) / len(sample)
    if nonzero_frac <= 1 - _MIN_ZERO_FRAC and len(elements) <= _COUNTED:
        nonzero_frac = int(np.count_nonzero(elements)) / len(elements)
    is_zero = nonzero_frac <= 1 - _MIN_ZERO_FRAC
    return ZeroMatrix(weakref.ref(tensor), rows, columns, 1 - nonzero_frac) if is_zero else None


def sparse_product(matrix: ZeroMatrix, output: Any) -> SparseProduct | None:
    """Describe the product of this matrix and another one that gives this output; None if the sizes do not fit."""
    import torch

    kind: Any = torch.Tensor
    if type(output) is not torch.Tensor or kind.dim(output) != 2:
        return None
    rows, width = (int(size) for size in kind.size(output))
    if rows != matrix.rows:
        return None
    nonzero = max(1, round((1 - matrix.zero_frac) * matrix.rows * matrix.columns))
    return SparseProduct(matrix.rows, matrix.columns, width, nonzero, bool(kind.requires_grad.__get__(output)))


def _positions(elements: int, columns: int) -> slice:
    """Return evenly spaced positions that do not stay in one column or on one diagonal."""
    stride = max(1, elements // _SAMPLED)
    while stride > 1 and any([math.gcd(stride, size) > 1 for size in (columns - 1, columns, columns + 1)]):
        stride -= 1
    return slice(stride // 2, None, stride)
