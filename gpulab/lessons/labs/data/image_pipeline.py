"""Loading a photograph in stages: read the file, decode and resize it, draw a random view."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpulab.lessons.labs.data.page_photos import CROP, MEAN, SIDE, STD

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]


def decode_resized(data: bytes, side: int = SIDE) -> Pixels:
    """Decode the bytes of a JPEG file and resize the image: (side, side, 3)."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((side, side)))


def random_view(pixels: Pixels, generator: np.random.Generator) -> Tensor:
    """Crop an image at random, flip it at random, and normalise it: (3, CROP, CROP) in float32."""
    import torch

    left, top = generator.integers(0, SIDE - CROP + 1, 2).tolist()
    view = pixels[top : top + CROP, left : left + CROP]
    if generator.random() < 0.5:
        view = view[:, ::-1]
    values = torch.from_numpy(np.ascontiguousarray(view.transpose(2, 0, 1)))
    return (values.float() / 255 - MEAN) / STD
