"""Photographs of pages, to train an image search on: decoded and changed one by one, or decoded once and in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

SIDE, CROP = 80, 64  # pixels: as a file is kept once it is decoded, and as the model takes it
CLASSES = 10
MEAN, SPREAD = 0.5, 0.25


class Snapshots:
    """A dataset that opens, decodes, crops, flips, brightens and normalises each photograph when it is asked for.

    The class of file i is i modulo ten. Chance hangs on the index alone: the same items come out whoever loads them.
    """

    def __init__(self, files: Sequence[Path], length: int) -> None:
        self.files, self.length = tuple(files), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import torch

        which, chance = index % len(self.files), np.random.default_rng(index)
        pixels = opened(self.files[which]).astype(np.float32) / 255
        left, top = chance.integers(0, SIDE - CROP + 1, 2).tolist()
        pixels = pixels[top : top + CROP, left : left + CROP]
        if chance.random() < 0.5:
            pixels = pixels[:, ::-1]
        pixels = (pixels * chance.uniform(0.8, 1.2) - MEAN) / SPREAD
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), which % CLASSES


def opened(file: Path) -> np.ndarray:
    """A JPEG file as (SIDE, SIDE, 3) bytes."""
    from PIL import Image

    with Image.open(file) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE)))


def decoded(files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """All of them, once: (count, 3, SIDE, SIDE) uint8 and their classes; 19 kB each."""
    import torch

    pixels = torch.from_numpy(np.stack([opened(file) for file in files])).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.arange(len(files)) % CLASSES


def drawn(kept: tuple[Tensor, Tensor], batch: int, steps: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of what is decoded already, drawn at random: whole rows are copied, nothing is computed."""
    import torch

    pixels, classes = kept
    chance = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(0, len(pixels), (batch,), generator=chance)
        yield pixels[rows], classes[rows]


def changed(pixels: Tensor) -> Tensor:
    """A batch of bytes, cropped, flipped, brightened and normalised at once, on the device where it lies."""
    import torch

    count = len(pixels)
    left, top = np.random.default_rng(count).integers(0, SIDE - CROP + 1, 2).tolist()
    crop = pixels[:, :, top : top + CROP, left : left + CROP].float() / 255
    flipped = torch.rand(count, 1, 1, 1, device=pixels.device) < 0.5
    crop = torch.where(flipped, crop.flip(3), crop)
    return (crop * torch.empty(count, 1, 1, 1, device=pixels.device).uniform_(0.8, 1.2) - MEAN) / SPREAD


def network(width: int = 128) -> nn.Module:
    """A convolutional network of three blocks, as an image search uses to tell pages apart."""
    from torch import nn

    def block(inside: int, outside: int) -> nn.Sequential:
        layers = (
            layer
            for channels in (inside, outside)
            for layer in (
                nn.Conv2d(channels, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
            )
        )
        return nn.Sequential(*layers, nn.MaxPool2d(2))

    blocks = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES))
