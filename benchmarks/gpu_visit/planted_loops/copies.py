"""A planted cause in copies from the host."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.gpu_visit.planted_loops.settings import LoopSettings, PlantedLoop


def train_on_host_images(settings: LoopSettings) -> None:
    """Large batches in pageable memory, copied with a call that blocks; or pinned, with one that does not."""
    batch, side = settings.size(256, 2), settings.size(224, 16)
    batches = [torch.randn(batch, 3, side, side) for _ in range(settings.size(3, 1))]
    if settings.fixed and settings.device == "cuda":
        batches = [images.pin_memory() for images in batches]
    model = nn.Sequential(nn.Conv2d(3, 64, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(64, 10)).to(settings.device)
    labels = (torch.arange(batch) % 10).to(settings.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(settings.steps):
        images = batches[step % len(batches)].to(settings.device, non_blocking=settings.fixed)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        settings.step_done()


COPIES = (
    PlantedLoop(
        name="pageable_copies",
        about="154 MB per step from pageable memory, with a .to() that blocks",
        fix="pinned memory and non_blocking=True",
        rules=("pageable_copies",),
        run=train_on_host_images,
    ),
)
