"""A model that computes on many more threads than there are cores, as with a setting copied from a larger machine."""

from __future__ import annotations

import functools
import os

import numpy as np

from gpulab.workloads.training import batch_loader, image_classifier, torch_threads, train_classifier
from gpulab.workloads.workload import Workload

SIDE = 64  # pixels
BATCH = 16
TIMES = 4  # as many threads as cores


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def train_on_threads(*, device: str = "cpu", steps: int = 60, times: float = TIMES) -> list[float]:
    """Train a small classifier on images in memory, with `times` as many threads as cores."""
    import torch
    from torch.utils.data import TensorDataset

    random_state = np.random.default_rng(0)
    labels = np.arange(steps * BATCH) % 10
    images = random_state.normal(0, 1, (16, 3, SIDE, SIDE)).astype(np.float32)[np.arange(len(labels)) % 16]
    images += labels[:, None, None, None].astype(np.float32) / 10
    loader = batch_loader(TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)), BATCH, device)
    with torch_threads(max(1, round(times * cores()))):
        return train_classifier(image_classifier(16), loader, device)


THREADS = (
    Workload(
        name="threads",
        about="A model that computes on four times as many threads as there are cores.",
        run=train_on_threads,
        rule="cpu_oversubscription",
        twin="threads_as_cores",
    ),
    Workload(
        name="threads_as_cores",
        about="The same model on as many threads as there are cores.",
        run=functools.partial(train_on_threads, times=1.0),
        rule=None,
    ),
)
