"""Items of a remote store, and where copies of them are kept: in a worker's memory, or in files on a local disk.

The store is declared (a read waits); the caches are real. An item tells whether its read went to the store, so reads
are counted in the batches themselves, whatever process made them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gpulab.wording import percent

if TYPE_CHECKING:
    import pandas as pd

VALUES = 256  # float32 numbers of an item
ITEM_BYTES = 4 * VALUES

Item = npt.NDArray[np.float32]


class Cache(Protocol):
    """Where an item may lie already."""

    def get(self, index: int) -> Item | None:
        """The item, if it is here."""
        ...

    def put(self, index: int, item: Item) -> None:
        """Keep it."""
        ...


class Remote:
    """A data set in a store elsewhere, read through a cache if there is one.

    Item i is its sum, and 1 where the store had to be asked for it, 0 where the cache had it.
    """

    def __init__(self, length: int, cache: Cache | None = None, wait_s: float = 0.004) -> None:
        self.length, self.cache, self.wait_s = length, cache, wait_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[float, int]:
        item = self.cache.get(index) if self.cache is not None else None
        if item is not None:
            return float(item.sum()), 0
        item = self._read(index)
        if self.cache is not None:
            self.cache.put(index, item)
        return float(item.sum()), 1

    def _read(self, index: int) -> Item:
        time.sleep(self.wait_s)
        return np.random.default_rng(index).normal(0, 1, VALUES).astype(np.float32)


class Ram:
    """The items this process has read, in its own memory; another worker has another one."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}

    def get(self, index: int) -> Item | None:
        """The item, if it is here."""
        return self.items.get(index)

    def put(self, index: int, item: Item) -> None:
        """Keep it."""
        self.items[index] = item


class Disk:
    """One file for each item in a folder of a local disk; every process that reads there finds what any has put."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def get(self, index: int) -> Item | None:
        """The item, if its file is there."""
        try:
            return np.frombuffer(self._path(index).read_bytes(), np.float32)
        except FileNotFoundError:
            return None

    def put(self, index: int, item: Item) -> None:
        """Write it beside its place and move it there: no reader ever finds half a file."""
        written = self._path(index).with_suffix(f".{os.getpid()}")
        written.write_bytes(item.tobytes())
        written.replace(self._path(index))

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.f32"


def reads(loader: Iterable[Any], epochs: int) -> list[int]:
    """How many items the store was asked for in each epoch."""
    return [sum(int(asked.sum()) for _, asked in loader) for _ in range(epochs)]


def mean_wait_ms(hit_frac: float, hit_ms: float, miss_ms: float) -> float:
    """What a read takes in the mean where so many are answered by a cache that others share, over a network."""
    return hit_frac * hit_ms + (1 - hit_frac) * miss_ms


def table(counted: Mapping[str, tuple[int, int] | list[int]], items: int) -> pd.DataFrame:
    """Reads of the store in two epochs of so many items, a row for each way of keeping them."""
    import pandas as pd

    rows = {
        name: {
            "epoch 1": first,
            "epoch 2": second,
            "hit ratio": percent(1 - second / items),
            "KiB from the store": round((first + second) * ITEM_BYTES / 1024),
        }
        for name, (first, second) in counted.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")
