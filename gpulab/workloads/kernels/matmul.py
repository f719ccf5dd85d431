"""Large matrix products on data in device memory: the device is busy, and nothing is wrong."""

from __future__ import annotations

from gpulab.workloads.training import loss_values, perceptron, random_normal, run_optimizer_steps
from gpulab.workloads.workload import Workload


def train_large_layers(*, device: str = "cpu", steps: int = 60, batch_size: int | None = None) -> list[float]:
    """Train two large linear layers on data in device memory."""
    import torch
    from torch import nn

    width, default_batch = (1024, 512) if device == "cpu" else (8192, 4096)
    samples = random_normal(batch_size or default_batch, width).to(device)
    model = perceptron(width, width, width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return loss_values(
        run_optimizer_steps(optimizer, lambda _: nn.functional.mse_loss(model(samples), samples), range(steps))
    )


MATMUL = (
    Workload(
        name="matmul",
        about="Large matrix products without any waits: as fast as the device.",
        run=train_large_layers,
        rule="device_bound",
    ),
)
