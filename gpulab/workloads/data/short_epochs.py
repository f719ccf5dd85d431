"""Short epochs whose workers are started anew for each: more workers than help, and none kept."""

from __future__ import annotations

import functools
import itertools

from gpulab.workloads.data.slow_items import RemoteImages
from gpulab.workloads.training import batch_loader, classify, computing_on, convolutional
from gpulab.workloads.workload import Workload

BATCH = 8
STEPS_IN_AN_EPOCH = 8


def train_in_short_epochs(
    *, device: str = "cpu", steps: int = 64, workers: int = 8, keep_workers: bool = False
) -> list[float]:
    """Train a small classifier on few images, so that an epoch is over soon."""
    in_one = min(steps, STEPS_IN_AN_EPOCH)
    images = RemoteImages(in_one * BATCH, wait_s=0.0)
    loader = batch_loader(images, BATCH, device, workers=workers, persistent=keep_workers)
    epochs = itertools.chain.from_iterable(loader for _ in range(-(-steps // in_one)))
    with computing_on(1):
        return classify(convolutional(24), itertools.islice(epochs, steps), device)


STARTING = (
    Workload(
        name="starting",
        about="Short epochs, for each of which eight workers are started anew.",
        run=train_in_short_epochs,
        rule="too_many_workers",
        twin="starting_once",
    ),
    Workload(
        name="starting_once",
        about="The same short epochs, fed by two workers that live on from one to the next.",
        run=functools.partial(train_in_short_epochs, steps=120, workers=2, keep_workers=True),
        rule=None,
    ),
)
