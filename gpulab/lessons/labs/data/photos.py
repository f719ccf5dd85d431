"""Photographs on a file server: each item waits for the server, then decodes, crops and flips a JPEG file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

CROP = 64  # pixels per side
WAIT_S = 0.008  # latency of the file server


class Photos:
    """A dataset of `length` items from a few JPEG files; the class of file i is i modulo ten.

    Random choices depend on the index only, so every process loads the same items.
    """

    def __init__(self, files: Sequence[Path], length: int, *, wait_s: float = WAIT_S) -> None:
        self.files, self.length, self.wait_s = tuple(files), length, wait_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import torch
        from PIL import Image

        time.sleep(self.wait_s)  # the latency of the file server
        file_index = index % len(self.files)
        generator = np.random.default_rng(index)
        with Image.open(self.files[file_index]) as image:
            side = int(generator.integers(image.width // 2, image.width + 1))
            left, top = generator.integers(0, image.width - side + 1, 2).tolist()
            crop = image.convert("RGB").resize((CROP, CROP), box=(left, top, left + side, top + side))
        pixels = np.asarray(crop, np.float32) / 255
        if generator.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), file_index % 10
