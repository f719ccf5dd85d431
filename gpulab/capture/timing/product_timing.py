"""Time products of matrices that are mostly zeros, as dense and as sparse ones, on this machine.

Which one is faster depends on the sizes, the share of zeros and the kernels of PyTorch. Random matrices of the same
sizes are used, after the recorded code: the program's tensors are not touched, nor its random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns  # bound here: the program may replace the functions of the module
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.zero_matrices import SparseProduct
from gpulab.capture.timing.timed_passes import own_autograd, times_in_turn
from gpulab.run import SparseOperand

_MAX_ELEMENTS = 1 << 27  # of the dense matrix


class ProductTimes(NamedTuple):
    """Forward and, if it has one, backward pass of a product."""

    dense_ns: int
    sparse_ns: int  # with a sparse tensor in COO format


def time_products(products: Iterable[SparseProduct], budget_ns: int) -> dict[SparseProduct, ProductTimes]:
    """Time products, large ones first, within a budget; those for which it does not suffice are left out."""
    end_ns, times = perf_counter_ns() + budget_ns, dict[SparseProduct, ProductTimes]()
    with own_autograd() as is_possible:
        if not is_possible:
            return {}
        for product in sorted(set(products), key=_size, reverse=True):
            is_small = product.rows * product.columns <= _MAX_ELEMENTS
            if is_small and perf_counter_ns() < end_ns and (measured := _times(product, end_ns)) is not None:
                times[product] = measured
    return times


def timed_operands(
    products: Iterable[tuple[SparseProduct, SparseOperand]], budget_ns: int
) -> tuple[SparseOperand, ...]:
    """Return the operands whose products were timed, with the times of all calls of a step, the largest first."""
    products = list(products)
    times = time_products([product for product, _ in products], budget_ns)
    operands = [
        replace(
            operand,
            dense_ns=(operand.calls or 0) * times[product].dense_ns,
            sparse_ns=(operand.calls or 0) * times[product].sparse_ns,
        )
        for product, operand in products
        if product in times
    ]
    return tuple(sorted(operands, key=lambda operand: -(operand.dense_ns or 0)))


def _size(product: SparseProduct) -> int:
    return product.rows * product.columns * product.width


def _times(product: SparseProduct, end_ns: int) -> ProductTimes | None:
    """Return the times of a product; None if there is no time to measure them."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(0)
    positions = torch.randint(product.rows * product.columns, (product.nonzero,), generator=generator, device="cpu")
    dense = torch.zeros(product.rows * product.columns, dtype=torch.float32, device="cpu")
    dense = dense.index_fill_(0, positions, 1.0).reshape(product.rows, product.columns)
    passes = [_forward_and_backward(product, matrix) for matrix in (dense, dense.to_sparse())]
    times_ns = times_in_turn(passes, end_ns)
    return None if times_ns is None else ProductTimes(*times_ns)


def _forward_and_backward(product: SparseProduct, matrix: Any) -> Callable[[], None]:
    import torch

    other = torch.full((product.columns, product.width), 0.01, dtype=torch.float32, device="cpu")
    other.requires_grad_(product.with_gradient)
    gradient = torch.full((product.rows, product.width), 0.01, dtype=torch.float32, device="cpu")

    def run_once() -> None:
        output = torch.mm(matrix, other)
        if product.with_gradient:
            torch.autograd.grad(output, other, gradient)

    return run_once
