"""Scans read from a disk that cannot keep up, or from memory once they were read.

Each read goes to the disk itself: what the system keeps in memory of the file is dropped before, as it would be lost
by itself where the data is larger than the memory. Where temporary files lie in memory there is no disk to wait for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpulab.workloads.training import batch_loader, classify, computing_on, convolutional
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

SCAN_BYTES = 8 << 20  # each: 16 slices of 256 x 512 pixels of 4 bytes, of which a few are looked at
SCANS = 24
SIDE = 64  # pixels of what the model sees
BATCH = 8


class Scans:
    """A dataset of large scans in one file; every item is read when it is asked for."""

    def __init__(self, path: str, length: int) -> None:
        self.path, self.length = path, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        which = index % SCANS
        return seen(scan_from_disk(self.path, which)), which % 10


class KeptScans(Scans):
    """The same scans, of which what the model sees is kept once it was read."""

    def __init__(self, path: str, length: int) -> None:
        super().__init__(path, length)
        self.kept = [seen(scan_from_disk(path, which)) for which in range(SCANS)]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        which = index % SCANS
        return self.kept[which], which % 10


def scan_from_disk(path: str, which: int) -> bytes:
    """One scan, read from the disk and not from what the system keeps of it in memory."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a raw file, for its number)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), which * SCAN_BYTES, SCAN_BYTES, os.POSIX_FADV_DONTNEED)
        file.seek(which * SCAN_BYTES)
        return file.read(SCAN_BYTES)


def seen(scan: bytes) -> Tensor:
    """What the model sees of a scan: a few of its pixels."""
    import torch

    pixels = np.frombuffer(scan, np.uint8)[: 3 * SIDE * SIDE].reshape(3, SIDE, SIDE)
    return torch.from_numpy(pixels.astype(np.float32) / 255)


@contextlib.contextmanager
def scans_on_disk() -> Iterator[str]:
    """A file of noise that leans to the brightness of each class, the same every time; gone afterwards."""
    chance = np.random.default_rng(0)
    file = tempfile.NamedTemporaryFile(suffix=".scans", delete=False)  # noqa: SIM115  (workers open it by name)
    try:
        with file:
            noise = chance.integers(0, 128, SCAN_BYTES, np.uint8)
            for which in range(SCANS):
                file.write((np.roll(noise, which) + which % 10 * 12).astype(np.uint8).tobytes())
            file.flush()
            os.fsync(file.fileno())  # only what has been written can be dropped from memory
        yield file.name
    finally:
        os.unlink(file.name)  # noqa: PTH108


def train_on_scans(*, device: str = "cpu", steps: int = 40, workers: int = 0, keep: bool = False) -> list[float]:
    """Train a small classifier on scans that are read for every batch, or once ahead."""
    with scans_on_disk() as path, computing_on(1):
        scans = (KeptScans if keep else Scans)(path, steps * BATCH)
        loader = batch_loader(scans, BATCH, device, workers=workers)
        return classify(convolutional(12), loader, device)


READING = (
    Workload(
        name="reading",
        about="Large scans, read from the disk by the main process for every batch.",
        run=train_on_scans,
        rule="slow_storage",
        twin="reading_once",
    ),
    Workload(
        name="reading_workers",
        about="Large scans, read by two workers, which the disk keeps waiting.",
        run=functools.partial(train_on_scans, workers=2),
        rule="slow_storage",
        twin="reading_once",
    ),
    Workload(
        name="reading_once",
        about="The same scans, each read once, and what the model needs of it kept in memory.",
        run=functools.partial(train_on_scans, steps=120, keep=True),
        rule=None,
    ),
)
