"""A deep, narrow model at batch size 1: each kernel ends before the next operator is dispatched."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpulab.workloads.training import (
    deep_narrow_model,
    fast_dtype,
    loss_values,
    random_normal,
    run_optimizer_steps,
    torch_threads,
)
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, DEPTH = 64, 60
# Batch sizes at which an operator takes longer than its dispatch: a GPU does in 10 us what takes a core a millisecond.
LARGE_BATCH_CPU, LARGE_BATCH_CUDA = 1024, 2**18


def train_tiny_ops(*, device: str = "cpu", steps: int = 600, batch_size: int | None = 1) -> list[float]:
    """Train a regression with many small layers; `batch_size=None` makes each layer large enough."""
    batch_size = batch_size or (LARGE_BATCH_CPU if device == "cpu" else LARGE_BATCH_CUDA)
    batches = 8 if device == "cpu" else 2
    samples = random_normal(batches * batch_size, WIDTH).to(device, fast_dtype(device))
    # With operators this small, several threads would only wait for each other.
    with torch_threads(1):
        return _fit(samples.split(batch_size), steps)


def _fit(batches: Sequence[Tensor], steps: int) -> list[float]:
    """Learn the mean of each sample, cycling through the batches."""
    import torch
    from torch import nn

    model = deep_narrow_model(WIDTH, DEPTH).to(batches[0].device, batches[0].dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def loss_of(samples: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(samples), samples.mean(1, keepdim=True))

    return loss_values(run_optimizer_steps(optimizer, loss_of, itertools.islice(itertools.cycle(batches), steps)))


TINY_OPS = (
    Workload(
        name="tiny_ops",
        about="A deep, narrow model at batch size 1: dispatching the operators takes longer than their kernels.",
        run=train_tiny_ops,
        rule="dispatch_bound",
        twin="tiny_ops_batched",
    ),
    Workload(
        name="tiny_ops_batched",
        about="The same model with batches so large that each operator takes longer than its dispatch.",
        run=functools.partial(train_tiny_ops, steps=40, batch_size=None),
        rule=None,
        batch=LARGE_BATCH_CPU,
    ),
)
