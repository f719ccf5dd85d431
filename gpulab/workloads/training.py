"""The models and the plain loop that several workloads share."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn


def convolutional(channels: int, classes: int = 10) -> nn.Module:
    """A small image classifier, the same weights every time; `channels` sets its cost."""
    from torch import nn

    with _seeded():
        return nn.Sequential(
            *(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(2 * channels, 4 * channels, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * channels, classes)),
        )


def listening(channels: int, classes: int = 10) -> nn.Module:
    """A small classifier of sound, the same weights every time; `channels` sets its cost."""
    from torch import nn

    with _seeded():
        return nn.Sequential(
            *(nn.Conv1d(1, channels, 9, stride=2), nn.ReLU()),
            *(nn.Conv1d(channels, 2 * channels, 9, stride=4), nn.ReLU()),
            *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * channels, classes)),
        )


def perceptron(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them, the same weights every time."""
    from torch import nn

    layers: list[nn.Module] = []
    with _seeded():
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def narrow_and_deep(width: int, depth: int) -> nn.Module:
    """Many layers of a few microseconds' work each, the same weights every time."""
    from torch import nn

    with _seeded():
        layers = [(nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh()) for _ in range(depth)]
        return nn.Sequential(*(part for layer in layers for part in layer), nn.Linear(width, 1))


def classify(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: str) -> list[float]:
    """Train on every batch once; gives the loss of each step.

    The losses stay on the device until the end: asking for one in each step would make the loop wait for it.
    """
    import torch
    from torch import nn

    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for inputs, labels in batches:
        inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return listed(losses)


def number_on(device: str) -> dtype:
    """What a GPU's matrix units are made for; a CPU may lack it."""
    import torch

    return torch.float32 if device == "cpu" else torch.bfloat16


def listed(losses: list[Tensor]) -> list[float]:
    """The losses as numbers, fetched from the device at once."""
    import torch

    return [float(loss) for loss in torch.stack(losses).tolist()]


@contextlib.contextmanager
def computing_on(threads: int | None) -> Iterator[None]:
    """Compute on this many threads inside, and on as many as before afterwards; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Weights drawn inside come out the same, and the caller's random numbers go on as if nothing had been drawn."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
