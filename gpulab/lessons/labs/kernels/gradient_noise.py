"""Gradient noise scale, and a training loop that grows the batch size with it.

The noise scale is the batch size at which the error of a batch's gradient is as large as the true gradient: the sum of
the variances of all elements of per-sample gradients, divided by the squared norm of the mean gradient. Below it, a
larger batch gives a clearly better step; above it, hardly (McCandlish and others, "An empirical model of large-batch
training", 2018). Late in training gradients cancel, and the noise scale grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulab.extras import require_extra

if TYPE_CHECKING:
    import pandas as pd

NOISE_SAMPLES = 512  # samples on which the noise scale is measured
MAX_FACTOR = 16  # the largest factor by which the batch grows or the learning rate falls


def per_sample_gradients(model: Any, inputs: Any, labels: Any) -> Any:
    """Compute per-sample gradients, one row each, in one pass: vmap over the gradient of one sample."""
    import torch
    from torch.func import functional_call, grad, vmap

    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss(weights: Any, row: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(model, weights, (row[None],)), label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, inputs, labels)
    return torch.cat([each.flatten(1) for each in gradients.values()], dim=1)


def noise_scale(gradients: Any) -> float:
    """Compute the noise scale of per-sample gradients, one row each; infinite if their mean is lost in noise."""
    mean = gradients.mean(0)
    variance = float((gradients - mean).square().sum()) / (len(gradients) - 1)
    squared_norm = float(mean.square().sum()) - variance / len(
        gradients
    )  # unbiased: the norm of a sample mean is too large
    return variance / squared_norm if squared_norm > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Result of a training run."""

    updates: int
    samples: int
    loss: float  # final loss on all training samples
    batches: tuple[int, ...]  # the batch size of each epoch
    noise_scales: tuple[float, ...]  # noise scale at the end of each epoch


def train_small_classifier(
    data: tuple[Any, Any], *, adapt: str, batch: int = 16, learning_rate: float = 0.1, epochs: int = 6, seed: int = 0
) -> TrainingResult:
    """Train a small classifier; adapt after each epoch that ends with a noise scale of at least twice the batch size.

    `adapt`: "batch" doubles the batch size, "rate" halves the learning rate, "none" changes nothing.
    """
    import torch

    inputs, labels = (torch.as_tensor(each) for each in data)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(inputs.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    updates, factor = 0, 1
    batches: list[int] = []
    noise_scales: list[float] = []
    for _ in range(epochs):
        size = batch * factor if adapt == "batch" else batch
        optimizer.param_groups[0]["lr"] = learning_rate / factor if adapt == "rate" else learning_rate
        for indices in torch.randperm(len(inputs)).split(size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[indices]), labels[indices]).backward()
            optimizer.step()
            updates += 1
        batches.append(size)
        noise_scales.append(noise_scale(per_sample_gradients(model, inputs[:NOISE_SAMPLES], labels[:NOISE_SAMPLES])))
        if noise_scales[-1] >= 2 * batch * factor and factor < MAX_FACTOR:
            factor *= 2
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(inputs), labels))
    return TrainingResult(
        updates=updates,
        samples=epochs * len(inputs),
        loss=loss,
        batches=tuple(batches),
        noise_scales=tuple(noise_scales),
    )


def training_table(trainings: Mapping[str, TrainingResult]) -> pd.DataFrame:
    """Compare training runs, one row each."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    columns = {
        "updates": [each.updates for each in trainings.values()],
        "loss": [f"{each.loss:.3f}" for each in trainings.values()],
        "batch by epoch": [", ".join(map(str, each.batches)) for each in trainings.values()],
    }
    return pd.DataFrame(columns, index=list(trainings))
