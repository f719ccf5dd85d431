"""Attention with its formula written out: the score matrix is written and read in several passes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gpulab.workloads.training import fast_dtype, loss_values, perceptron, random_normal, run_optimizer_steps
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

# On an H100 the scores of one layer take 512 MB in bfloat16; on a CPU a few MB are enough to try it out.
SEQUENCES, TOKENS, HEADS, WIDTH, LAYERS = 8, 2048, 8, 64, 2
SMALL_SEQUENCES, SMALL_TOKENS = 2, 128


def attention_by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as in the papers."""
    import torch

    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    return torch.softmax(scores, -1) @ value


def fused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The same with PyTorch's fused operator, which never writes the scores."""
    from torch.nn import functional

    return functional.scaled_dot_product_attention(query, key, value)


def train_attention(*, device: str = "cpu", steps: int = 30, fused: bool = False) -> list[float]:
    """Train attention layers on random tokens; `fused` uses PyTorch's operator."""
    import torch
    from torch import nn

    attention = fused_attention if fused else attention_by_hand
    count, tokens = (SMALL_SEQUENCES, SMALL_TOKENS) if device == "cpu" else (SEQUENCES, TOKENS)
    width = HEADS * WIDTH
    samples = random_normal(count, tokens, width).to(device, fast_dtype(device))
    model = nn.ModuleList(perceptron(width, 3 * width) for _ in range(LAYERS)).to(device, fast_dtype(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(_: int) -> Tensor:
        state = samples
        for layer in model:
            query, key, value = layer(state).view(count, tokens, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
            state = state + attention(query, key, value).transpose(1, 2).reshape(count, tokens, width)
        return nn.functional.mse_loss(state, samples.flip(1))

    return loss_values(run_optimizer_steps(optimizer, loss_of, range(steps)))


ATTENTION = (
    Workload(
        name="attention_by_hand",
        about="Attention with its formula written out: the score matrix is written and read in several passes.",
        run=train_attention,
        rule="unfused_elementwise",
        twin="attention_in_one",
        needs_gpu=True,
    ),
    Workload(
        name="attention_in_one",
        about="The same with scaled_dot_product_attention, which never writes the scores.",
        run=functools.partial(train_attention, fused=True),
        rule=None,
        needs_gpu=True,
    ),
)
