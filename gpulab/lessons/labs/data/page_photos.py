"""Photographs of pages for an image search: decoded and augmented one by one, or decoded once and then in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

SIDE, CROP = 80, 64  # pixels: of a decoded file, and of a model input
CLASSES = 10
MEAN, STD = 0.5, 0.25


class Snapshots:
    """A dataset that opens, decodes, crops, flips, brightens and normalises a photograph in each `__getitem__`.

    The class of file i is i modulo ten. Random choices depend on the index only, so every process loads the same items.
    """

    def __init__(self, files: Sequence[Path], length: int) -> None:
        self.files, self.length = tuple(files), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import torch

        file_index, generator = index % len(self.files), np.random.default_rng(index)
        pixels = decode_image(self.files[file_index]).astype(np.float32) / 255
        left, top = generator.integers(0, SIDE - CROP + 1, 2).tolist()
        pixels = pixels[top : top + CROP, left : left + CROP]
        if generator.random() < 0.5:
            pixels = pixels[:, ::-1]
        pixels = (pixels * generator.uniform(0.8, 1.2) - MEAN) / STD
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), file_index % CLASSES


def decode_image(file: Path) -> np.ndarray:
    """Decode a JPEG file to a (SIDE, SIDE, 3) uint8 array."""
    from PIL import Image

    with Image.open(file) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE)))


def decode_images(files: Sequence[Path]) -> tuple[Tensor, Tensor]:
    """Decode all files once: a (count, 3, SIDE, SIDE) uint8 tensor and the classes; 19 kB per file."""
    import torch

    pixels = torch.from_numpy(np.stack([decode_image(file) for file in files])).permute(0, 3, 1, 2).contiguous()
    return pixels, torch.arange(len(files)) % CLASSES


def sample_batches(
    decoded_images: tuple[Tensor, Tensor], batch: int, steps: int, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random batches of decoded images: rows are copied, and nothing is computed."""
    import torch

    pixels, classes = decoded_images
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(0, len(pixels), (batch,), generator=generator)
        yield pixels[rows], classes[rows]


def augment_batch(pixels: Tensor) -> Tensor:
    """Crop, flip, brighten and normalise a uint8 batch on its device."""
    import torch

    count = len(pixels)
    left, top = np.random.default_rng(count).integers(0, SIDE - CROP + 1, 2).tolist()
    crop = pixels[:, :, top : top + CROP, left : left + CROP].float() / 255
    flipped = torch.rand(count, 1, 1, 1, device=pixels.device) < 0.5
    crop = torch.where(flipped, crop.flip(3), crop)
    return (crop * torch.empty(count, 1, 1, 1, device=pixels.device).uniform_(0.8, 1.2) - MEAN) / STD


def image_search_network(width: int = 128) -> nn.Module:
    """Return a convolutional network of three blocks, as an image search uses to classify pages."""
    from torch import nn

    def block(in_channels: int, out_channels: int) -> nn.Sequential:
        layers = (
            layer
            for channels in (in_channels, out_channels)
            for layer in (
                nn.Conv2d(channels, out_channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(out_channels),
                nn.ReLU(),
            )
        )
        return nn.Sequential(*layers, nn.MaxPool2d(2))

    blocks = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES))
