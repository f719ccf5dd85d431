"""Random crop, flip and brightness: the random choices of a batch, and its images augmented one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulab.lessons.labs.data.page_photos import MEAN, STD

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ViewChoices:
    """The random choices for a batch, one per image, on one device."""

    left: Tensor  # of the crop, pixels
    top: Tensor
    flip: Tensor  # bool
    gain: Tensor  # of the brightness

    def to(self, device: str) -> ViewChoices:
        """Return the choices on another device."""
        return ViewChoices(
            left=self.left.to(device), top=self.top.to(device), flip=self.flip.to(device), gain=self.gain.to(device)
        )


def draw_choices(count: int, side: int, crop: int, seed: int = 0) -> ViewChoices:
    """Draw the choices for `count` images of `side` x `side` pixels, of which `crop` x `crop` are used."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    offsets = torch.randint(0, side - crop + 1, (2, count), generator=generator)
    return ViewChoices(
        left=offsets[0],
        top=offsets[1],
        flip=torch.rand(count, generator=generator) < 0.5,
        gain=torch.empty(count).uniform_(0.8, 1.2, generator=generator),
    )


def random_pixels(count: int, side: int, seed: int = 0) -> Tensor:
    """Return a batch of images of noise: (count, 3, side, side) in uint8."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def augment_one_by_one(pixels: Tensor, choices: ViewChoices, crop: int) -> Tensor:
    """Crop, flip, brighten and normalise the images of a batch, one after the other: (count, 3, crop, crop)."""
    import torch

    views = []
    sides = zip(choices.left.tolist(), choices.top.tolist(), choices.flip.tolist(), choices.gain.tolist(), strict=True)
    for image, (left, top, flip, gain) in zip(pixels, sides, strict=True):
        view = image[:, top : top + crop, left : left + crop].float() / 255
        if flip:
            view = view.flip(2)
        views.append((view * gain - MEAN) / STD)
    return torch.stack(views)
