"""Planted causes in memory: needless checkpointing, a cache that is emptied."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu_visit.planted_loops.settings import LoopSettings, PlantedLoop


def train_with_checkpoints(settings: LoopSettings) -> None:
    """A transformer whose layers run again in the backward pass, or not."""
    width, length = settings.size(1024, 16), settings.size(512, 4)
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(width, settings.size(16, 2), 4 * width, dropout=0.0, batch_first=True)
        for _ in range(settings.size(8, 2))
    ).to(settings.device, settings.dtype)
    inputs = torch.randn(settings.size(32, 2), length, width, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.001)

    def encode(state: Tensor) -> Tensor:
        for layer in layers:
            state = layer(state) if settings.fixed else checkpoint(layer, state, use_reentrant=False)
        return state

    for _ in range(settings.steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(encode(inputs), inputs).backward()
        optimizer.step()
        settings.step_done()


def train_with_emptied_cache(settings: LoopSettings) -> None:
    """The allocator's cache is emptied after every step, or never."""
    width = settings.size(4096, 16)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(6)))
    model = model.to(settings.device, settings.dtype)
    inputs = torch.randn(settings.size(8192, 4), width, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
        if not settings.fixed:
            torch.cuda.empty_cache()
        settings.step_done()


MEMORY = (
    PlantedLoop(
        name="checkpointing",
        about="activation checkpointing although memory is free",
        fix="no checkpointing",
        rules=("activation_checkpointing",),
        run=train_with_checkpoints,
    ),
    PlantedLoop(
        name="emptied_cache",
        about="torch.cuda.empty_cache() in every step",
        fix="without the call",
        rules=("allocator_thrash",),
        run=train_with_emptied_cache,
    ),
)
