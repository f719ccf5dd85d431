"""Scans read from a disk that is too slow, or from memory once they were read.

Each read goes to the disk: the page cache of the file is dropped first, as happens by itself if the data do not fit
into memory. If temporary files are in memory (tmpfs), there is no disk to wait for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpulab.workloads.training import batch_loader, image_classifier, torch_threads, train_classifier
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

SCAN_BYTES = 8 << 20  # per scan: 16 slices of 256 x 512 pixels of 4 bytes, of which a few are used
SCANS = 24
SIDE = 64  # pixels per side of the model's input
BATCH = 8


class Scans:
    """A dataset of large scans in one file; each access reads its scan."""

    def __init__(self, path: str, length: int) -> None:
        self.path, self.length = path, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        scan_index = index % SCANS
        return model_input(scan_from_disk(self.path, scan_index)), scan_index % 10


class CachedScans(Scans):
    """The same scans with the model's inputs cached in memory."""

    def __init__(self, path: str, length: int) -> None:
        super().__init__(path, length)
        self.inputs = [model_input(scan_from_disk(path, scan_index)) for scan_index in range(SCANS)]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        scan_index = index % SCANS
        return self.inputs[scan_index], scan_index % 10


def scan_from_disk(path: str, scan_index: int) -> bytes:
    """Read one scan from the disk, not from the page cache."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (a raw file, for its number)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), scan_index * SCAN_BYTES, SCAN_BYTES, os.POSIX_FADV_DONTNEED)
        file.seek(scan_index * SCAN_BYTES)
        return file.read(SCAN_BYTES)


def model_input(scan: bytes) -> Tensor:
    """Return the model's input from a scan: a few of its pixels."""
    import torch

    pixels = np.frombuffer(scan, np.uint8)[: 3 * SIDE * SIDE].reshape(3, SIDE, SIDE)
    return torch.from_numpy(pixels.astype(np.float32) / 255)


@contextlib.contextmanager
def scans_on_disk() -> Iterator[str]:
    """Create a temporary file of noise with a brightness per class, the same every time; delete it afterwards."""
    random_state = np.random.default_rng(0)
    file = tempfile.NamedTemporaryFile(suffix=".scans", delete=False)  # noqa: SIM115  (workers open it by name)
    try:
        with file:
            noise = random_state.integers(0, 128, SCAN_BYTES, np.uint8)
            for scan_index in range(SCANS):
                file.write((np.roll(noise, scan_index) + scan_index % 10 * 12).astype(np.uint8).tobytes())
            file.flush()
            os.fsync(file.fileno())  # only written pages can be dropped from the page cache
        yield file.name
    finally:
        os.unlink(file.name)  # noqa: PTH108


def train_on_scans(*, device: str = "cpu", steps: int = 40, workers: int = 0, keep: bool = False) -> list[float]:
    """Train a small classifier on scans that are read for every batch, or once in advance."""
    with scans_on_disk() as path, torch_threads(1):
        scans = (CachedScans if keep else Scans)(path, steps * BATCH)
        loader = batch_loader(scans, BATCH, device, workers=workers)
        return train_classifier(image_classifier(12), loader, device)


SLOW_DISK = (
    Workload(
        name="reading",
        about="Large scans, read from disk by the main process for every batch.",
        run=train_on_scans,
        rule="slow_storage",
        twin="reading_once",
    ),
    Workload(
        name="reading_workers",
        about="Large scans, read by two workers that wait for the disk.",
        run=functools.partial(train_on_scans, workers=2),
        rule="slow_storage",
        twin="reading_once",
    ),
    Workload(
        name="reading_once",
        about="The same scans, each read once, with the model's inputs cached in memory.",
        run=functools.partial(train_on_scans, steps=120, keep=True),
        rule=None,
    ),
)
