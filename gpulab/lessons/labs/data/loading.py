"""I/O-bound and CPU-bound items, loaded by DataLoader workers, by threads, or by one asyncio thread.

The pipeline is real; the cost of an item is declared, and therefore known. The mean number of items in flight follows
from Little's law, as for any queue: items x seconds per item / total seconds.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import psutil

from gpulab.extras import require_extra

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

SIDE = 32  # pixels per side of a picture
CLASSES = 10


class DatasetWithCost(Protocol):
    """A data set whose items all have the same declared cost."""

    cost_s: float

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class IoBoundDataset:
    """I/O-bound pictures: each read waits for slow storage, which needs no core."""

    def __init__(self, length: int, wait_s: float = 0.008) -> None:
        self.length, self.cost_s = length, wait_s
        self.noise = _noise()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.cost_s)
        return _picture(self.noise, index)

    async def fetch(self, index: int) -> tuple[Tensor, int]:
        """Return the same item by asynchronous I/O, without a thread."""
        await asyncio.sleep(self.cost_s)
        return _picture(self.noise, index)


class CpuBoundDataset:
    """CPU-bound pictures: each needs CPU time in pure Python, as a hand-written transform does."""

    def __init__(self, length: int, cpu_s: float = 0.005) -> None:
        self.length, self.cost_s = length, cpu_s
        self.noise = _noise()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        burn_cpu(self.cost_s)
        return _picture(self.noise, index)


class SlowOpenDataset:
    """A data set that every process has to open first, which is slow; an item is the id of the process that read it."""

    def __init__(self, length: int, open_s: float = 0.2, wait_s: float = 0.002) -> None:
        self.length, self.open_s, self.wait_s = length, open_s, wait_s
        self.opened_by = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if self.opened_by != os.getpid():
            time.sleep(self.open_s)
            self.opened_by = os.getpid()
        time.sleep(self.wait_s)
        return os.getpid()


class FileNameDataset:
    """The file names of a large data set, as Python strings or packed in one array.

    A batch is one number: the unshared memory of the process that loaded it, in bytes.
    """

    def __init__(self, count: int, *, packed: bool) -> None:
        names = [f"folder-{index % 1000:04d}/photo-of-the-data-set-{index:08d}.jpg" for index in range(count)]
        self.names: Any = np.array(names, dtype=np.bytes_) if packed else names

    def __len__(self) -> int:
        return len(self.names)

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        """Load a batch; DataLoader calls this method if a data set has it."""
        for index in indices:
            len(self.names[index])
        return [unshared_bytes()]


@dataclass(frozen=True, kw_only=True)
class FetchRate:
    """Throughput of loading, and the mean number of items in flight."""

    items: int
    wall_s: float
    cost_s: float  # of one item, as declared

    @property
    def per_s(self) -> float:
        """Items per second."""
        return self.items / self.wall_s

    @property
    def concurrency(self) -> float:
        """Mean number of items in flight (Little's law)."""
        return self.items * self.cost_s / self.wall_s


@dataclass(frozen=True, kw_only=True)
class EpochGaps:
    """The delay before the first batch of each epoch, and the number of processes that loaded data."""

    gaps_s: tuple[float, ...]  # from the start of an epoch to its first batch
    processes: int

    @property
    def later_gap_s(self) -> float:
        """Median gap of the later epochs."""
        return float(np.median(self.gaps_s[1:]))


def worker_table(rates_by_kind: Mapping[str, Mapping[int, FetchRate]]) -> pd.DataFrame:
    """Tabulate throughput and concurrency: one row per number of workers, two columns per kind of item."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    columns = {
        f"{kind}: {name}": {workers: value(rate) for workers, rate in rates.items()}
        for kind, rates in rates_by_kind.items()
        for name, value in (
            ("items/s", lambda rate: round(rate.per_s)),
            ("concurrency", lambda rate: round(rate.concurrency, 1)),
        )
    }
    return pd.DataFrame(columns).rename_axis("workers")


def burn_cpu(cpu_s: float) -> None:
    """Use this much CPU time of the thread; it takes longer if other programs use the core, too."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def time_loader(loader: Any) -> FetchRate:
    """Time one epoch of a DataLoader without training; the clock starts after its workers were started."""
    batches = iter(loader)
    start = time.perf_counter()
    items = sum(len(batch[1]) for batch in batches)
    return FetchRate(items=items, wall_s=time.perf_counter() - start, cost_s=loader.dataset.cost_s)


def time_threads(data: DatasetWithCost, threads: int) -> FetchRate:
    """Load every item once with this number of threads in this process, and time it."""
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        items = sum(1 for _ in pool.map(data.__getitem__, range(len(data))))
        return FetchRate(items=items, wall_s=time.perf_counter() - start, cost_s=data.cost_s)


def time_async(data: IoBoundDataset, at_once: int) -> FetchRate:
    """Load every item once with a single asyncio thread and `at_once` requests in flight, and time it."""
    results: list[FetchRate] = []
    # A notebook already runs an event loop, and loops do not nest: this one runs in a thread.
    thread = threading.Thread(target=lambda: results.append(asyncio.run(_fetch_all(data, at_once))))
    thread.start()
    thread.join()
    return results[0]


def time_epoch_gaps(loader: Iterable[Any], count: int) -> EpochGaps:
    """Run `count` epochs of a loader of `SlowOpenDataset` items and time the delay before each first batch."""
    gaps_s: list[float] = []
    processes: set[int] = set()
    for _ in range(count):
        start = time.perf_counter()
        for index, batch in enumerate(loader):
            if not index:
                gaps_s.append(time.perf_counter() - start)
            processes.update(batch.tolist())
    return EpochGaps(gaps_s=tuple(gaps_s), processes=len(processes))


def unshared_bytes() -> int:
    """Return the unshared memory (USS) of this process, in bytes."""
    return int(psutil.Process().memory_full_info().uss)


async def _fetch_all(data: IoBoundDataset, at_once: int) -> FetchRate:
    slots = asyncio.Semaphore(at_once)

    async def fetch_one(index: int) -> None:
        async with slots:
            await data.fetch(index)

    start = time.perf_counter()
    await asyncio.gather(*(fetch_one(index) for index in range(len(data))))
    return FetchRate(items=len(data), wall_s=time.perf_counter() - start, cost_s=data.cost_s)


def _noise() -> Any:
    return np.random.default_rng(0).normal(0, 1, (3, SIDE, SIDE)).astype(np.float32)


def _picture(noise: Any, index: int) -> tuple[Tensor, int]:
    """Return the noise, shifted and added to the brightness of its class: almost no computation."""
    import torch

    label = index % CLASSES
    return torch.from_numpy(np.roll(noise, index, axis=2) + np.float32(label / CLASSES)), label
