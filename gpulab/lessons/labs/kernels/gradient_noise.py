"""How much the gradients of single samples differ, and a training that lets the batch grow with it.

The noise scale is the batch size at which what a batch misses of the true gradient is as large as that gradient: the
sum of the variances of all numbers in a sample's gradient, over the squared length of the mean gradient. Below it a
larger batch gives a clearly better step; above it, hardly (McCandlish and others, "An empirical model of large-batch
training", 2018). Late in training gradients cancel, and it grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

SEEN = 512  # samples that the noise is measured on
MOST_TIMES = 16  # that the batch grows to at most, or the learning rate falls by


def gradients_of_each(model: Any, inputs: Any, labels: Any) -> Any:
    """The gradient of every sample's own loss, a row each: one pass, by vmap over a function of one sample."""
    import torch
    from torch.func import functional_call, grad, vmap

    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss(weights: Any, row: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(model, weights, (row[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(weights, inputs, labels)
    return torch.cat([each.flatten(1) for each in found.values()], dim=1)


def noise_scale(gradients: Any) -> float:
    """By the gradients of single samples, a row each; infinite where their mean cannot be told from zero."""
    mean = gradients.mean(0)
    variance = float((gradients - mean).square().sum()) / (len(gradients) - 1)
    squared = float(mean.square().sum()) - variance / len(gradients)  # the mean of a sample is longer than the true one
    return variance / squared if squared > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a training."""

    updates: int
    samples: int
    loss: float  # of all samples it was trained on, at the end
    batches: tuple[int, ...]  # the batch size of each epoch
    noises: tuple[float, ...]  # the noise scale at the end of each


def train(
    data: tuple[Any, Any], *, answer: str, batch: int = 16, rate: float = 0.1, epochs: int = 6, seed: int = 0
) -> Trained:
    """A small classifier; after each epoch that ends with a noise scale of twice the batch or more, there is an answer.

    `answer`: "batch" doubles the batch, "rate" halves the learning rate, "none" leaves both.
    """
    import torch

    inputs, labels = (torch.as_tensor(each) for each in data)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(inputs.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    updates, times = 0, 1
    batches: list[int] = []
    noises: list[float] = []
    for _ in range(epochs):
        size = batch * times if answer == "batch" else batch
        optimizer.param_groups[0]["lr"] = rate / times if answer == "rate" else rate
        for chosen in torch.randperm(len(inputs)).split(size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
            updates += 1
        batches.append(size)
        noises.append(noise_scale(gradients_of_each(model, inputs[:SEEN], labels[:SEEN])))
        if noises[-1] >= 2 * batch * times and times < MOST_TIMES:
            times *= 2
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(inputs), labels))
    return Trained(
        updates=updates, samples=epochs * len(inputs), loss=loss, batches=tuple(batches), noises=tuple(noises)
    )


def table(trainings: Mapping[str, Trained]) -> pd.DataFrame:
    """These trainings side by side, a row each."""
    import pandas as pd

    columns = {
        "updates": [each.updates for each in trainings.values()],
        "loss": [f"{each.loss:.3f}" for each in trainings.values()],
        "batch, by epoch": [", ".join(map(str, each.batches)) for each in trainings.values()],
    }
    return pd.DataFrame(columns, index=list(trainings))
