"""JPEG files of ten colours, as expensive to decode as photographs of their size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpulab.errors import GpulabError
from gpulab.synthetic.cache import cached_folder

GRAIN = 12.0  # standard deviation of the noise; without it, decoding is almost free


def images(count: int = 64, side: int = 256, seed: int = 0) -> list[Path]:
    """Return `count` JPEG files of `side` x `side` pixels; the class of file i is i modulo ten, its colour.

    Raises GpulabError if Pillow is missing, or if the cache cannot be written.
    """
    try:
        from PIL import Image
    except ImportError as missing:
        raise GpulabError(
            "Images cannot be generated.", why="Pillow, which writes JPEG, is not installed", fix="pip install pillow"
        ) from missing

    def make(folder: Path) -> None:
        random_state = np.random.default_rng(seed)
        hues = random_state.integers(40, 216, (10, 3))
        for index in range(count):
            patches = hues[index % 10] + random_state.integers(-40, 40, (8, 8, 3))
            smooth = Image.fromarray(patches.clip(0, 255).astype(np.uint8))
            large = np.asarray(smooth.resize((side, side), Image.Resampling.BICUBIC))
            grainy = (large + random_state.normal(0, GRAIN, (side, side, 1))).clip(0, 255).astype(np.uint8)
            Image.fromarray(grainy).save(folder / f"{index:05d}.jpg", quality=90)

    return sorted(cached_folder(f"images-{count}-{side}-{seed}", make).glob("*.jpg"))
