"""JPEG files decoded, cropped and flipped on access, by the main process or by workers."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING

import numpy as np

from gpulab.errors import GpulabError
from gpulab.workloads.training import batch_loader, image_classifier, torch_threads, train_classifier
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

SIZE = 512  # pixels per side; about 110 kB per file and 2.5 ms to decode and crop, like ImageNet photographs
CROP = 64
BATCH = 16
CHANNELS = 20  # of the first layer: on one thread, a step computes about as long as a batch takes to decode


class JpegImages:
    """A dataset of JPEG files in memory, ten classes of colour; `length` items from a few distinct files."""

    def __init__(self, length: int, *, distinct: int = 40) -> None:
        self.length = length
        self.files = jpeg_files(distinct)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import torch
        from PIL import Image

        # The seed is the index, so the images do not depend on the process that loads them.
        random_state = np.random.default_rng(index)
        side = int(random_state.integers(SIZE // 2, SIZE + 1))
        left, top = (int(edge) for edge in random_state.integers(0, SIZE - side + 1, 2))
        file_index = index % len(self.files)
        with Image.open(io.BytesIO(self.files[file_index])) as image:
            crop = image.convert("RGB").resize(
                (CROP, CROP), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
            )
        pixels = np.asarray(crop, np.float32) / 255
        if random_state.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), file_index % 10


@functools.lru_cache(maxsize=4)
def jpeg_files(count: int) -> tuple[bytes, ...]:
    """Return grainy patches of colour as JPEG, the same every time; file i has the hue of class i modulo ten."""
    try:
        from PIL import Image
    except ImportError as missing:
        raise GpulabError(
            "The image workloads cannot run.",
            why="Pillow, which encodes and decodes their JPEG files, is not installed",
            fix="pip install pillow",
        ) from missing
    random_state = np.random.default_rng(0)
    hues = random_state.integers(40, 216, (10, 3))
    files = []
    for index in range(count):
        patches = hues[index % 10] + random_state.integers(-40, 40, (8, 8, 3))
        smooth = Image.fromarray(patches.astype(np.uint8)).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        # With grain, a file costs as much to decode as a photograph; without it, decoding is almost free.
        grain = random_state.normal(0, 12, (SIZE, SIZE, 1))
        picture = Image.fromarray((np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return tuple(files)


def train_on_images(*, device: str = "cpu", steps: int = 50, workers: int = 0, threads: int | None = 1) -> list[float]:
    """Train a small classifier on JPEG files; without workers, the loop itself decodes them.

    The model computes on `threads` threads (None: PyTorch's setting, which is all cores). A model on every core leaves
    none to the workers. On two cores, two workers shortened a step from 69 to 47 ms with one thread, from 59 to 54 ms
    with two.
    """
    loader = batch_loader(JpegImages(steps * BATCH), BATCH, device, workers=workers)
    with torch_threads(threads):
        return train_classifier(image_classifier(CHANNELS if device == "cpu" else 512), loader, device)


IMAGES = (
    Workload(
        name="images",
        about="JPEG images decoded and cropped by the main process: the model waits for every batch.",
        run=train_on_images,
        rule="no_workers",
        twin="images_workers",
    ),
    Workload(
        name="images_workers",
        about="The same images, decoded by two workers while the model trains.",
        run=functools.partial(train_on_images, workers=2),
        rule=None,
    ),
)
