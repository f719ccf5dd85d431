"""Items that wait, items that compute, and who fetches them: a DataLoader, threads, or one thread that waits for all.

An item's cost is declared, so that the pipeline is real and what an item costs is known. How many items were fetched
at once follows from three measured numbers, as for any queue: items x seconds each / seconds in all (Little's law).
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

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

SIDE = 32  # pixels of a picture
CLASSES = 10


class Declared(Protocol):
    """A data set whose every item costs the same, and says how much."""

    cost_s: float

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class Waiting:
    """Pictures that come from slow storage: each makes its reader wait, which takes no core."""

    def __init__(self, length: int, wait_s: float = 0.008) -> None:
        self.length, self.cost_s = length, wait_s
        self.noise = _noise()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.cost_s)
        return _picture(self.noise, index)

    async def fetch(self, index: int) -> tuple[Tensor, int]:
        """The same item, asked of storage that can be waited for without a thread."""
        await asyncio.sleep(self.cost_s)
        return _picture(self.noise, index)


class Computing:
    """Pictures that take CPU time in pure Python, as a transform written by hand does."""

    def __init__(self, length: int, cpu_s: float = 0.005) -> None:
        self.length, self.cost_s = length, cpu_s
        self.noise = _noise()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        spend(self.cost_s)
        return _picture(self.noise, index)


class Indexed:
    """Items of a data set that every process has to open before its first one; an item is the process that read it."""

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


class Names:
    """As many file names as a large data set has, as Python strings or packed in one array.

    A batch is one number: the bytes that only the process that fetched it has.
    """

    def __init__(self, count: int, *, packed: bool) -> None:
        names = [f"folder-{index % 1000:04d}/photo-of-the-data-set-{index:08d}.jpg" for index in range(count)]
        self.names: Any = np.array(names, dtype=np.bytes_) if packed else names

    def __len__(self) -> int:
        return len(self.names)

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        """What a DataLoader asks for a batch, where a data set has it."""
        for index in indices:
            len(self.names[index])
        return [own_bytes()]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """How fast items were fetched, and how many of them at once."""

    items: int
    wall_s: float
    cost_s: float  # of one item, as declared

    @property
    def per_s(self) -> float:
        """Items in a second."""
        return self.items / self.wall_s

    @property
    def at_once(self) -> float:
        """Items being fetched at any moment, in the mean."""
        return self.items * self.cost_s / self.wall_s


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """What the beginning of each epoch took, and how many processes read in all of them."""

    gaps_s: tuple[float, ...]  # from asking for an epoch to its first batch
    processes: int

    @property
    def later_gap_s(self) -> float:
        """The typical gap after the first epoch."""
        return float(np.median(self.gaps_s[1:]))


def table(kinds: Mapping[str, Mapping[int, Fetched]]) -> pd.DataFrame:
    """A row for each number of workers; for each kind of item, how many a second and how many at once."""
    import pandas as pd

    columns = {
        f"{kind}: {name}": {workers: value(each) for workers, each in swept.items()}
        for kind, swept in kinds.items()
        for name, value in (
            ("items/s", lambda each: round(each.per_s)),
            ("at once", lambda each: round(each.at_once, 1)),
        )
    }
    return pd.DataFrame(columns).rename_axis("workers")


def spend(cpu_s: float) -> None:
    """Use as much CPU time of this thread, however long that takes where others want the core as well."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def drained(loader: Any) -> Fetched:
    """One epoch of a DataLoader with nothing that trains; the clock starts once its workers do."""
    feed = iter(loader)
    began = time.perf_counter()
    items = sum(len(batch[1]) for batch in feed)
    return Fetched(items=items, wall_s=time.perf_counter() - began, cost_s=loader.dataset.cost_s)


def by_threads(data: Declared, threads: int) -> Fetched:
    """Every item once, fetched by so many threads of this process."""
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        items = sum(1 for _ in pool.map(data.__getitem__, range(len(data))))
        return Fetched(items=items, wall_s=time.perf_counter() - began, cost_s=data.cost_s)


def by_one_thread(data: Waiting, at_once: int) -> Fetched:
    """Every item once, by a single thread that waits for so many at a time (asynchronous I/O)."""
    told: list[Fetched] = []
    # A notebook has an event loop of its own, in which no other can run: this one gets a thread.
    thread = threading.Thread(target=lambda: told.append(asyncio.run(_awaited(data, at_once))))
    thread.start()
    thread.join()
    return told[0]


def epochs(loader: Iterable[Any], count: int) -> Epochs:
    """Run through a loader of `Indexed` items so many times."""
    gaps_s: list[float] = []
    processes: set[int] = set()
    for _ in range(count):
        began = time.perf_counter()
        for place, batch in enumerate(loader):
            if not place:
                gaps_s.append(time.perf_counter() - began)
            processes.update(batch.tolist())
    return Epochs(gaps_s=tuple(gaps_s), processes=len(processes))


def own_bytes() -> int:
    """Memory that this process shares with no other."""
    return int(psutil.Process().memory_full_info().uss)


async def _awaited(data: Waiting, at_once: int) -> Fetched:
    room = asyncio.Semaphore(at_once)

    async def one(index: int) -> None:
        async with room:
            await data.fetch(index)

    began = time.perf_counter()
    await asyncio.gather(*(one(index) for index in range(len(data))))
    return Fetched(items=len(data), wall_s=time.perf_counter() - began, cost_s=data.cost_s)


def _noise() -> Any:
    return np.random.default_rng(0).normal(0, 1, (3, SIDE, SIDE)).astype(np.float32)


def _picture(noise: Any, index: int) -> tuple[Tensor, int]:
    """The same noise, shifted, over the brightness of its class: nothing to compute once it is there."""
    import torch

    label = index % CLASSES
    return torch.from_numpy(np.roll(noise, index, axis=2) + np.float32(label / CLASSES)), label
