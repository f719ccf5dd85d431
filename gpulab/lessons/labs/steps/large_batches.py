"""Small images of ten patterns, a classifier for them, and what is measured on it at different batch sizes.

The patterns are random 4 x 4 squares, enlarged to 8 x 8 pixels, shifted by up to one pixel, of varying contrast and
with much noise. A small network learns them in seconds, and still makes errors on images that it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.lessons.labs.steps.throughput import fastest_cpu_s

PATTERNS, SIDE = 10, 8
PIXELS = SIDE * SIDE
WIDTH = 64  # of the two hidden layers
# Standard deviation of the initial weights: 1.7 times what He initialization would use, so that early updates are
# sensitive to the learning rate.
WEIGHT_STD = 0.3


@dataclass(frozen=True, kw_only=True)
class PatternImages:
    """Training and test images, one row of 64 pixels each, with the index of their pattern as label."""

    inputs: Any  # float32 (rows, 64)
    labels: Any  # int64 (rows,)
    test_inputs: Any
    test_labels: Any


def pattern_images(rows: int = 8192, test_rows: int = 4096, noise: float = 1.0) -> PatternImages:
    """Generate images; `noise` is the standard deviation of each pixel's noise (the patterns have one of 1)."""
    import torch

    patterns = np.random.default_rng(1234).normal(0, 1, (PATTERNS, 4, 4)).repeat(2, 1).repeat(2, 2)

    def generate(count: int, seed: int) -> tuple[Any, Any]:
        random_state = np.random.default_rng(seed)
        labels = random_state.integers(0, PATTERNS, count)
        shifts = random_state.integers(-1, 2, (count, 2))
        images = np.stack(
            [np.roll(patterns[label], tuple(shift), (0, 1)) for label, shift in zip(labels, shifts, strict=True)]
        )
        images = images * random_state.uniform(0.5, 1.5, (count, 1, 1)) + random_state.normal(0, noise, images.shape)
        return torch.as_tensor(images.reshape(count, PIXELS).astype(np.float32)), torch.as_tensor(labels)

    inputs, labels = generate(rows, 1)
    test_inputs, test_labels = generate(test_rows, 2)
    return PatternImages(inputs=inputs, labels=labels, test_inputs=test_inputs, test_labels=test_labels)


def pattern_classifier(seed: int, normalize: bool = False) -> Any:
    """Build a network with two hidden layers. `normalize`: with BatchNorm after each of them."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layers: list[Any] = []
    for columns in (PIXELS, WIDTH):
        hidden = nn.Linear(columns, WIDTH)
        nn.init.normal_(hidden.weight, std=WEIGHT_STD)
        layers += [hidden, *([nn.BatchNorm1d(WIDTH)] if normalize else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, PATTERNS))


def shuffled_batches(rows: int, batch: int, epochs: int, seed: int = 0) -> Iterator[Any]:
    """Yield the row indices of each batch, epoch after epoch, each epoch in another random order."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(rows, generator=generator).split(batch)


def ramp(updates: int) -> Callable[[int], float]:
    """Return a linear warm-up: the factor of the learning rate for an update, counted from 0. `ramp(1)` is none."""
    return lambda update: min(1.0, (update + 1) / updates)


def correct_frac(model: Any, inputs: Any, labels: Any) -> float:
    """Return the accuracy of a classifier, 0-1. Layers such as BatchNorm use their running statistics."""
    import torch

    was_training = model.training
    model.eval()
    with torch.no_grad():
        correct = (model(inputs).argmax(1) == labels).float().mean()
    model.train(was_training)
    return float(correct)


def mean_loss(model: Any, inputs: Any, labels: Any) -> float:
    """Return the cross-entropy on these rows, without gradients."""
    import torch

    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(inputs), labels))


def update_cpu_s(data: PatternImages, batch: int, repeats: int = 60) -> float:
    """Return the CPU time of one SGD update with a batch of this size, in seconds: the fastest of `repeats`."""
    import torch

    model = pattern_classifier(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs, labels = data.inputs[:batch], data.labels[:batch]

    def update() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return fastest_cpu_s(update, repeats)
