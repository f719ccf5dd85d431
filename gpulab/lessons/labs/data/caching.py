"""A data set in a remote store, and two caches for it: in each worker's memory, or in files on a local disk.

The store is simulated (a read sleeps); the caches are real. Each item says whether it was read from the store, so the
reads can be counted in the batches, whichever process loaded them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gpulab.extras import require_extra
from gpulab.wording import percent

if TYPE_CHECKING:
    import pandas as pd

VALUES = 256  # float32 numbers per item
ITEM_BYTES = 4 * VALUES

ItemValues = npt.NDArray[np.float32]


class ItemCache(Protocol):
    """A cache of items."""

    def get(self, index: int) -> ItemValues | None:
        """Return the item, or None if it is not in the cache."""
        ...

    def put(self, index: int, item: ItemValues) -> None:
        """Add the item to the cache."""
        ...


class RemoteDataset:
    """A data set in a remote store, read through an optional cache.

    An item is the sum of its values, and 1 if it was read from the store, 0 if the cache had it.
    """

    def __init__(self, length: int, cache: ItemCache | None = None, wait_s: float = 0.004) -> None:
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

    def _read(self, index: int) -> ItemValues:
        time.sleep(self.wait_s)
        return np.random.default_rng(index).normal(0, 1, VALUES).astype(np.float32)


class MemoryCache:
    """A cache in the memory of one process; every DataLoader worker has its own."""

    def __init__(self) -> None:
        self.items: dict[int, ItemValues] = {}

    def get(self, index: int) -> ItemValues | None:
        """Return the item, or None if it is not in the cache."""
        return self.items.get(index)

    def put(self, index: int, item: ItemValues) -> None:
        """Add the item to the cache."""
        self.items[index] = item


class DiskCache:
    """A cache on a local disk, one file per item, shared by all processes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def get(self, index: int) -> ItemValues | None:
        """Return the item, or None if it has no file."""
        try:
            return np.frombuffer(self._path(index).read_bytes(), np.float32)
        except FileNotFoundError:
            return None

    def put(self, index: int, item: ItemValues) -> None:
        """Write the item to a temporary file and rename it, so that no reader finds half a file."""
        temporary = self._path(index).with_suffix(f".{os.getpid()}")
        temporary.write_bytes(item.tobytes())
        temporary.replace(self._path(index))

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06d}.f32"


def count_store_reads(loader: Iterable[Any], epochs: int) -> list[int]:
    """Count the items that are read from the store in each epoch."""
    return [sum(int(from_store.sum()) for _, from_store in loader) for _ in range(epochs)]


def mean_wait_ms(hit_frac: float, hit_ms: float, miss_ms: float) -> float:
    """Return the mean latency of a read through a shared network cache with this hit ratio."""
    return hit_frac * hit_ms + (1 - hit_frac) * miss_ms


def cache_table(counted: Mapping[str, tuple[int, int] | list[int]], items: int) -> pd.DataFrame:
    """Compare the store reads in two epochs of `items` items, one row per cache."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    rows = {
        name: {
            "epoch 1": first,
            "epoch 2": second,
            "hit ratio": percent(1 - second / items),
            "KiB from storage": round((first + second) * ITEM_BYTES / 1024),
        }
        for name, (first, second) in counted.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")
