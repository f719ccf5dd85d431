"""JPEG files of which some are damaged, and a dataset that skips damaged files when it meets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpulab.lessons.labs.data.page_photos import decode_image

EVERY = 10  # one file in ten is damaged


def write_damaged_copies(files: Sequence[Path], folder: Path) -> list[Path]:
    """Copy the files; of every tenth copy, in turns, the second half is missing or the first bytes are zero."""
    folder.mkdir(exist_ok=True)
    copies = []
    for index, file in enumerate(files):
        data = file.read_bytes()
        if index % EVERY == EVERY - 1:
            data = data[: len(data) // 2] if index // EVERY % 2 == 0 else bytes(64) + data[64:]
        copies.append(folder / file.name)
        copies[-1].write_bytes(data)
    return copies


@dataclass(frozen=True, kw_only=True)
class EpochOfFiles:
    """What happened in an epoch."""

    failures: int  # decodes that failed
    repeats: int  # samples that came more than once


class SkippingDataset:
    """A dataset that replaces a damaged file by the next good one; `failures` counts the decodes that failed."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files, self.failures = tuple(files), 0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Path:
        """Decode a file; return the path of the one that was decoded."""
        for offset in range(len(self.files)):
            file = self.files[(index + offset) % len(self.files)]
            try:
                decode_image(file)
            except OSError:  # also Pillow's UnidentifiedImageError
                self.failures += 1
            else:
                return file
        raise IndexError(index)


def read_epoch_of_files(files: Sequence[Path]) -> EpochOfFiles:
    """Read every file once, and count failures and repeated samples."""
    data = SkippingDataset(files)
    counts = Counter(data[index] for index in range(len(data)))
    return EpochOfFiles(failures=data.failures, repeats=sum(count - 1 for count in counts.values()))
