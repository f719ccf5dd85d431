"""Short epochs whose workers restart each time: too many workers, and not persistent."""

from __future__ import annotations

import functools
import itertools

from gpulab.workloads.data.slow_items import RemoteImages
from gpulab.workloads.training import batch_loader, image_classifier, torch_threads, train_classifier
from gpulab.workloads.workload import Workload

BATCH = 8
STEPS_PER_EPOCH = 8


def train_in_short_epochs(
    *, device: str = "cpu", steps: int = 64, workers: int = 8, keep_workers: bool = False
) -> list[float]:
    """Train a small classifier on few images, so that epochs are short."""
    epoch_steps = min(steps, STEPS_PER_EPOCH)
    images = RemoteImages(epoch_steps * BATCH, wait_s=0.0)
    loader = batch_loader(images, BATCH, device, workers=workers, persistent=keep_workers)
    epochs = itertools.chain.from_iterable(loader for _ in range(-(-steps // epoch_steps)))
    with torch_threads(1):
        return train_classifier(image_classifier(24), itertools.islice(epochs, steps), device)


SHORT_EPOCHS = (
    Workload(
        name="starting",
        about="Short epochs, each of which starts eight workers.",
        run=train_in_short_epochs,
        rule="too_many_workers",
        twin="starting_once",
    ),
    Workload(
        name="starting_once",
        about="The same short epochs with two persistent workers.",
        run=functools.partial(train_in_short_epochs, steps=120, workers=2, keep_workers=True),
        rule=None,
    ),
)
