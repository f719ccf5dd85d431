"""A recurrent network with few sequences per batch: one long host call, and little work per multiprocessor."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gpulab.workloads.training import loss_values, random_normal, run_optimizer_steps
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor


def train_on_sequences(*, device: str = "cpu", steps: int = 30, batch_size: int = 4) -> list[float]:
    """Train an LSTM to repeat its input one step later."""
    import torch
    from torch import nn

    width, length = (16, 20) if device == "cpu" else (1024, 400)
    # cuDNN computes in bfloat16, too, but PyTorch then copies the weights into one block in every call.
    dtype = torch.float32 if device == "cpu" else torch.float16
    samples = random_normal(batch_size, length, width).to(device, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.LSTM(width, width, batch_first=True).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def loss_of(_: int) -> Tensor:
        return nn.functional.mse_loss(model(samples)[0][:, 1:], samples[:, :-1])

    return loss_values(run_optimizer_steps(optimizer, loss_of, range(steps)))


RECURRENT = (
    Workload(
        name="few_sequences",
        about="A recurrent network at batch size 4: no kernel fills the GPU.",
        run=train_on_sequences,
        rule="small_batch",
        batch=4,
        twin="many_sequences",
        needs_gpu=True,
    ),
    Workload(
        name="many_sequences",
        about="The same network at batch size 512.",
        run=functools.partial(train_on_sequences, batch_size=512),
        rule=None,
        batch=512,
        needs_gpu=True,
    ),
)
