"""Items from slow storage: almost all of their time is waiting, which needs no core."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import numpy as np

from gpulab.workloads.training import batch_loader, image_classifier, torch_threads, train_classifier
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WAIT_S = 0.008  # one read from network storage
SIDE = 64  # pixels
BATCH = 8


class RemoteImages:
    """A dataset whose items each take as long as a read from network storage."""

    def __init__(self, length: int, *, wait_s: float = WAIT_S) -> None:
        self.length, self.wait_s = length, wait_s
        self.noise = np.random.default_rng(0).normal(0, 1, (3, SIDE, SIDE)).astype(np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import torch

        time.sleep(self.wait_s)
        label = index % 10
        # Almost nothing to compute: the same noise, shifted, plus the brightness of its class.
        return torch.from_numpy(np.roll(self.noise, index, axis=2) + np.float32(label / 10)), label


def train_from_storage(
    *, device: str = "cpu", steps: int = 50, workers: int = 0, wait_s: float = WAIT_S
) -> list[float]:
    """Train a small classifier on items from slow storage.

    The model computes on one thread: on any machine it is then faster than a single worker.
    """
    loader = batch_loader(RemoteImages(steps * BATCH, wait_s=wait_s), BATCH, device, workers=workers)
    with torch_threads(1):
        return train_classifier(image_classifier(14 if device == "cpu" else 512), loader, device)


SLOW_ITEMS = (
    Workload(
        name="waiting",
        about="Items from slow storage, read one after another by the main process.",
        run=train_from_storage,
        rule="no_workers",
        twin="waiting_workers",
    ),
    Workload(
        name="waiting_one_worker",
        about="Items from slow storage, read by a single worker, which is slower than the model.",
        run=functools.partial(train_from_storage, workers=1),
        rule="too_few_workers",
        twin="waiting_workers",
    ),
    Workload(
        name="waiting_workers",
        about="Items from slow storage, read by eight workers: they wait in parallel, so two cores are enough.",
        run=functools.partial(train_from_storage, steps=100, workers=8),
        rule=None,
    ),
)
