"""Residual classifiers of small images, of which one teaches another with fewer layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpulab.lessons.labs.steps.large_batches import PATTERNS, PIXELS, shuffled_batches

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 64
BATCH = 64
PEAK_RATE = 2e-3  # learning rate at its peak


def residual_classifier(layers: int, seed: int) -> Any:
    """Build a classifier of `layers` residual layers, with the parts `stem`, `layers` and `head`."""
    import torch
    from torch import nn
    from torch.nn import functional

    class ResidualLayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = x + self.narrow(functional.gelu(self.wide(self.norm(x))))
            return result

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(PIXELS, WIDTH)
            self.layers = nn.ModuleList([ResidualLayer() for _ in range(layers)])
            self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, PATTERNS))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for layer in self.layers:
                x = layer(x)
            result: Tensor = self.head(x)
            return result

    torch.manual_seed(seed)
    return Classifier()


def divergence_gradient_error(loss: Callable[[Tensor, Tensor], Tensor], temperature: float) -> float:
    """Return how far the gradient of a distillation loss is from that of the Kullback-Leibler divergence.

    `loss` takes the logits of student and teacher, of shape (rows, classes). The gradient of the divergence of the
    teacher's softened distribution from the student's, a mean over rows times temperature**2, is the temperature times
    the difference of both distributions, divided by the rows. The result is the largest error relative to the largest
    element of that gradient.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    student, teacher = 3 * torch.randn(2, 32, PATTERNS, generator=generator)
    student.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(student, teacher), student)
    difference = (student.detach() / temperature).softmax(dim=1) - (teacher / temperature).softmax(dim=1)
    expected = temperature * difference / len(student)
    return float((gradient - expected).abs().max() / expected.abs().max())


def fit(model: Any, batch_loss: Callable[[Any, Tensor], Tensor], rows: int, epochs: int, seed: int = 0) -> Any:
    """Train with AdamW, warm-up and decay. `batch_loss` takes the model and the row indices of a batch."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE)
    updates = epochs * -(-rows // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=updates)
    for indices in shuffled_batches(rows, BATCH, epochs, seed):
        optimizer.zero_grad()
        batch_loss(model, indices).backward()
        optimizer.step()
        schedule.step()
    return model
