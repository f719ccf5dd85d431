"""A transformer's feed-forward block with its formulas written out: a memory pass per elementary step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gpulab.workloads.training import (
    fast_dtype,
    loss_values,
    perceptron,
    random_normal,
    run_optimizer_steps,
    torch_threads,
)
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

TOKENS, WIDTH, BLOCKS = 4096, 48, 2


def gelu_by_hand(x: Tensor) -> Tensor:
    """GELU as in the papers."""
    import torch

    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def layer_norm_by_hand(x: Tensor) -> Tensor:
    """Each row minus its mean, over its standard deviation."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def fused_gelu(x: Tensor) -> Tensor:
    """The same with PyTorch's fused operator."""
    from torch.nn import functional

    return functional.gelu(x, approximate="tanh")


def fused_layer_norm(x: Tensor) -> Tensor:
    """The same with PyTorch's fused operator."""
    from torch.nn import functional

    return functional.layer_norm(x, x.shape[-1:])


def train_feed_forward(*, device: str = "cpu", steps: int = 50, in_one: bool = False) -> list[float]:
    """Train feed-forward blocks on random tokens; `in_one` uses PyTorch's operators for GELU and normalisation."""
    import torch
    from torch import nn

    gelu, normalised = (fused_gelu, fused_layer_norm) if in_one else (gelu_by_hand, layer_norm_by_hand)
    tokens, width = (TOKENS, WIDTH) if device == "cpu" else (16 * TOKENS, 16 * WIDTH)
    samples = random_normal(tokens, width).to(device, fast_dtype(device))
    model = perceptron(width, *([4 * width, width] * BLOCKS)).to(device, fast_dtype(device))
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(_: int) -> Tensor:
        state = samples
        for wide, narrow in zip(layers[::2], layers[1::2], strict=True):
            state = state + narrow(gelu(wide(normalised(state))))
        return nn.functional.mse_loss(state, samples.flip(0))

    with torch_threads(1):
        return loss_values(run_optimizer_steps(optimizer, loss_of, range(steps)))


BY_HAND = (
    Workload(
        name="by_hand",
        about="GELU and layer normalisation in elementary operations, each a pass over a large tensor.",
        run=train_feed_forward,
        rule="unfused_elementwise",
        twin="in_one",
    ),
    Workload(
        name="in_one",
        about="The same blocks with PyTorch's own gelu and layer_norm.",
        run=functools.partial(train_feed_forward, steps=100, in_one=True),
        rule=None,
    ),
)
