"""Half-precision convolutions on NCHW images, which a GPU converts to NHWC in every layer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gpulab.workloads.training import image_classifier, loss_values, random_normal, run_optimizer_steps
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 32


def train_on_random_images(*, device: str = "cpu", steps: int = 40, channels_last: bool = False) -> list[float]:
    """Train a small image classifier on random images in device memory, under autocast on a GPU."""
    import torch
    from torch import nn

    batch, channels, side = (16, 8, SIDE) if device == "cpu" else (256, 64, 4 * SIDE)
    images = random_normal(batch, 3, side, side).to(device)
    labels = (torch.arange(batch) % 10).to(device)
    model = image_classifier(channels).to(device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in the stubs
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    on_gpu = device != "cpu"

    def loss_of(_: int) -> Tensor:
        with torch.autocast("cuda" if on_gpu else "cpu", dtype=torch.bfloat16, enabled=on_gpu):
            return nn.functional.cross_entropy(model(images), labels)

    return loss_values(run_optimizer_steps(optimizer, loss_of, range(steps)))


LAYOUTS = (
    Workload(
        name="channels_first",
        about="Half-precision convolutions on channels-first images: each layer converts between NCHW and NHWC.",
        run=train_on_random_images,
        rule="layout_conversions",
        twin="channels_last",
        needs_gpu=True,
    ),
    Workload(
        name="channels_last",
        about="The same with model and images in channels last.",
        run=functools.partial(train_on_random_images, channels_last=True),
        rule=None,
        needs_gpu=True,
    ),
)
