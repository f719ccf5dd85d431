"""JPEG files of ten colours, as dear to decode as photographs of their size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpulab.errors import GpulabError
from gpulab.synthetic.cache import made

GRAIN = 12.0  # without grain a file has next to nothing in it to decode


def images(count: int = 64, side: int = 256, seed: int = 0) -> list[Path]:
    """So many JPEG files of `side` x `side` pixels; the class of file i is i modulo ten, and is its colour.

    Raises GpulabError where Pillow is missing, or the cache cannot be written.
    """
    try:
        from PIL import Image
    except ImportError as missing:
        raise GpulabError(
            "No images can be made.", why="Pillow is not installed, which writes JPEG", fix="pip install pillow"
        ) from missing

    def make(folder: Path) -> None:
        chance = np.random.default_rng(seed)
        hues = chance.integers(40, 216, (10, 3))
        for index in range(count):
            patches = hues[index % 10] + chance.integers(-40, 40, (8, 8, 3))
            smooth = Image.fromarray(patches.clip(0, 255).astype(np.uint8))
            large = np.asarray(smooth.resize((side, side), Image.Resampling.BICUBIC))
            grainy = (large + chance.normal(0, GRAIN, (side, side, 1))).clip(0, 255).astype(np.uint8)
            Image.fromarray(grainy).save(folder / f"{index:05d}.jpg", quality=90)

    return sorted(made(f"images-{count}-{side}-{seed}", make).glob("*.jpg"))
