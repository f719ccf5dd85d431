"""Time a training step on the CPU, eager and compiled: does torch.compile pay off, and after how many steps?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

WIDTH, BATCH, PIXELS, STEPS = 16, 16, 32, 40


@dataclass(frozen=True, kw_only=True)
class CompiledTraining:
    """Cost and gain of torch.compile for a training step."""

    first_step_s: float  # includes compilation of the forward and backward pass
    eager_ms: float  # the fastest of 40 steps
    compiled_ms: float  # the fastest of 40 steps


# Measured on 2026-11-28: the network of lesson 18 with 16 channels, a batch of 16 images of 32 x 32 pixels, torch 2.13,
# two cores of an AMD EPYC that other programs used, too; empty compiler cache.
STORED_TRAINING = CompiledTraining(first_step_s=42.6, eager_ms=36.8, compiled_ms=32.9)


def steps_to_break_even(first_step_s: float, eager_ms: float, compiled_ms: float) -> float:
    """Return the steps until compilation has paid for itself; infinite if a compiled step is not faster."""
    gain_ms = eager_ms - compiled_ms
    return math.ceil(1e3 * first_step_s / gain_ms) if gain_ms > 0 else math.inf


def time_training(network: Callable[[int], nn.Module]) -> CompiledTraining:
    """Train a network on the CPU, eager and then compiled with inductor: a minute or more. Needs a C++ compiler."""
    import torch
    from torch._inductor.utils import fresh_cache

    images, labels = torch.randn(BATCH, 3, PIXELS, PIXELS), torch.arange(BATCH) % 10
    model = network(WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(trained: Callable[..., torch.Tensor]) -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(trained(images), labels).backward()
        optimizer.step()
        return time.perf_counter() - start

    step(model)
    eager_s = min(step(model) for _ in range(STEPS))
    with fresh_cache():
        compiled = torch.compile(model)
        first_step_s = step(compiled)
        step(compiled)
        compiled_s = min(step(compiled) for _ in range(STEPS))
    return CompiledTraining(first_step_s=first_step_s, eager_ms=1e3 * eager_s, compiled_ms=1e3 * compiled_s)
