"""How sensitive a trained model is to noise on its weights: a simple measure of sharpness."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from gpulab.lessons.labs.steps.large_batches import mean_loss

MakeNoise = Callable[[Any, float, Any], Any]  # weight tensor, share of its norm, torch.Generator -> noise to add


def noisy_loss(
    model: Any, data: tuple[Any, Any], make_noise: MakeNoise, share: float, draws: int = 8, seed: int = 0
) -> float:
    """Return the mean loss of `draws` copies of a model whose parameters have noise added.

    `make_noise(weight, share, generator)` returns the noise of one parameter; `data`: inputs and labels.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(draws):
        noisy = copy.deepcopy(model)
        with torch.no_grad():
            for weight in noisy.parameters():
                weight.add_(make_noise(weight, share, generator))
        losses.append(mean_loss(noisy, *data))
    return sum(losses) / draws
