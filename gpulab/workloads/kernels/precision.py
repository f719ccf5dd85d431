"""Large matrix products that use tensor cores badly: in too high a precision, or with misaligned dimensions.

On a CPU these loops have no fault, and their twins do the same.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpulab.capture.protection.cuda_check import is_cuda_available
from gpulab.workloads.training import loss_values, perceptron, random_normal, run_optimizer_steps
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn


def train_products(
    *,
    device: str = "cpu",
    steps: int = 60,
    tf32: bool = False,
    half: bool = False,
    missing: int = 0,
    padded: bool = False,
) -> list[float]:
    """Train two large linear layers on data in device memory.

    `tf32` allows TF32 for float32 products; `half` computes them in bfloat16; `missing` removes this many units from
    the hidden layer's even width; `padded` adds as many units that are zero and stay zero.
    """
    import torch
    from torch import nn

    width, hidden, batch = (128, 256, 128) if device == "cpu" else (4096, 8192, 8192)
    samples = random_normal(batch, width).to(device)
    model = perceptron(width, hidden - missing, width)
    if padded:
        model = _pad(model, missing)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    on_gpu = device != "cpu"

    def loss_of(_: int) -> Tensor:
        with torch.autocast("cuda" if on_gpu else "cpu", dtype=torch.bfloat16, enabled=half and on_gpu):
            return nn.functional.mse_loss(model(samples).float(), samples)

    with _tf32_setting(tf32 and on_gpu):
        return loss_values(run_optimizer_steps(optimizer, loss_of, range(steps)))


def _pad(model: nn.Module, missing: int) -> nn.Module:
    """Add this many hidden units with zero output, so that their weights never learn."""
    import torch
    from torch import nn

    first, activation, second = model.children()
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    with torch.no_grad():
        first.weight = nn.Parameter(nn.functional.pad(first.weight, (0, 0, 0, missing)))
        first.bias = nn.Parameter(nn.functional.pad(first.bias, (0, missing)))
        second.weight = nn.Parameter(nn.functional.pad(second.weight, (0, missing)))
    return nn.Sequential(first, activation, second)


@contextlib.contextmanager
def _tf32_setting(on: bool) -> Iterator[None]:
    """Enable or disable TF32 for float32 products inside, and restore the setting; without a GPU, do nothing."""
    import torch

    if not is_cuda_available():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


PRODUCTS = (
    Workload(
        name="products_float32",
        about="Large matrix products in float32, which do not use tensor cores.",
        run=train_products,
        rule="no_tf32",
        twin="products_half",
        needs_gpu=True,
    ),
    Workload(
        name="products_tf32",
        about="Large matrix products in TF32; bfloat16 would take half the time.",
        run=functools.partial(train_products, tf32=True),
        rule="no_mixed_precision",
        twin="products_half",
        needs_gpu=True,
    ),
    Workload(
        name="products_half",
        about="The same products under bfloat16 autocast.",
        run=functools.partial(train_products, tf32=True, half=True),
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="products_odd",
        about="Large bfloat16 products with a hidden width that is not a multiple of eight.",
        run=functools.partial(train_products, half=True, missing=1),
        rule="misaligned_shapes",
        twin="products_even",
        needs_gpu=True,
    ),
    Workload(
        name="products_even",
        about="The same with the hidden width padded by one unit that stays zero.",
        run=functools.partial(train_products, half=True, missing=1, padded=True),
        rule=None,
        needs_gpu=True,
    ),
)
