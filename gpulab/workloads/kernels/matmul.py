"""Large matrix products on data that is already where it is needed: the device is busy, and nothing is wrong."""

from __future__ import annotations

from gpulab.workloads.training import listed, perceptron
from gpulab.workloads.workload import Workload


def train_large_layers(*, device: str = "cpu", steps: int = 60, batch_size: int | None = None) -> list[float]:
    """Train two large linear layers on data in the device's memory."""
    import torch
    from torch import nn

    width, enough = (1024, 512) if device == "cpu" else (8192, 4096)
    batch_size = batch_size or enough
    chance = torch.Generator().manual_seed(0)
    samples = torch.randn(batch_size, width, generator=chance).to(device)
    model = perceptron(width, width, width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(samples), samples)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return listed(losses)


MATMUL = (
    Workload(
        name="matmul",
        about="Large matrix products, nothing to wait for: as fast as the device is.",
        run=train_large_layers,
        rule="device_bound",
    ),
)
