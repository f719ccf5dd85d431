"""Gradients of small batches and of the large batch that they make up, and the critical batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def gradients_by_batch(model: Any, inputs: Any, labels: Any, batch: int) -> Any:
    """Compute the gradient of each batch of this many consecutive rows, one row each: as the ranks of a job would."""
    import torch

    weights = list(model.parameters())
    rows = []
    for part, part_labels in zip(inputs.split(batch), labels.split(batch), strict=True):
        gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(model(part), part_labels), weights)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows)


@dataclass(frozen=True, kw_only=True)
class SquaredNorms:
    """Mean squared norm of the gradients of small batches, and of the one large batch that they make up."""

    small: float
    large: float
    small_batch: int  # rows
    large_batch: int


def squared_norms(gradients: Any, batch: int) -> SquaredNorms:
    """Return the squared norms of batch gradients (one row each) and of their mean."""
    return SquaredNorms(
        small=float(gradients.square().sum(1).mean()),
        large=float(gradients.mean(0).square().sum()),
        small_batch=batch,
        large_batch=batch * len(gradients),
    )


def critical_batch(updates: Mapping[int, float]) -> float:
    """Return the critical batch size: the fewest samples to a target, divided by the fewest updates.

    `updates`: updates to the target by batch size (McCandlish and others, 2018, call them E_min and S_min).
    """
    return min(batch * count for batch, count in updates.items()) / min(updates.values())
