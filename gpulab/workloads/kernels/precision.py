"""Large matrix products that use a GPU's tensor cores badly: in too fine a precision, or with an odd dimension.

On a CPU there is nothing to find in them, and their twins do the same.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpulab.workloads.training import listed, noise, optimizer_steps, perceptron
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
    """Train two large linear layers on data in the device's memory.

    `tf32` lets float32 products use tensor cores; `half` computes them in bfloat16; `missing` takes so many units from
    the hidden layer's even width; `padded` puts units in their place that are zero and stay so.
    """
    import torch
    from torch import nn

    width, hidden, batch = (128, 256, 128) if device == "cpu" else (4096, 8192, 8192)
    samples = noise(batch, width).to(device)
    model = perceptron(width, hidden - missing, width)
    if padded:
        model = _padded(model, missing)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    on_gpu = device != "cpu"

    def loss_of(_: int) -> Tensor:
        with torch.autocast("cuda" if on_gpu else "cpu", dtype=torch.bfloat16, enabled=half and on_gpu):
            return nn.functional.mse_loss(model(samples).float(), samples)

    with _tf32(tf32 and on_gpu):
        return listed(optimizer_steps(optimizer, loss_of, range(steps)))


def _padded(model: nn.Module, missing: int) -> nn.Module:
    """The same model with so many more hidden units: they give zero, and so their weights never learn."""
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
def _tf32(on: bool) -> Iterator[None]:
    """TF32 for float32 products inside, or not; as it was afterwards. Nothing is touched where it is not wanted."""
    import torch

    if not torch.cuda.is_available():
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
        about="Large matrix products in float32, beside the tensor cores.",
        run=train_products,
        rule="no_tf32",
        twin="products_half",
        needs_gpu=True,
    ),
    Workload(
        name="products_tf32",
        about="Large matrix products in TF32 where bfloat16 would take half the time.",
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
        about="Large bfloat16 products with a hidden width that is no multiple of eight.",
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
