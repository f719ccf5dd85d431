"""The exercise: read epochs from shards in a remote store, in few requests, little memory and a well-mixed order."""

from __future__ import annotations

import math
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpulab.lessons.labs.data.formats.counted_store import CountedStore
from gpulab.lessons.labs.data.formats.sample_formats import read_tar_members
from gpulab.lessons.labs.data.formats.stream_order import labels_per_batch

Sample = npt.NDArray[np.float32]  # the label, then the features
EpochReader = Callable[["ShardStore", int], Iterator[Sample]]  # (store, number of the epoch) -> its samples

MOST_SAMPLES, LEAST_LABELS = 512, 6.5


class ShardStore:
    """Tar shards in a remote store, whose requests and fetched samples are counted.

    `names` are the shards, `count` the number of samples, all shards with the same number of them.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.store = CountedStore(folder, latency_s=0.02, bytes_per_s=100e6)
        self.names: Sequence[str] = sorted(path.name for path in self.store.folder.iterdir())
        self._places = [place for name in self.names for place in self._index(name)]
        self.count = len(self._places)
        self.reset()

    def reset(self) -> None:
        """Set all counters to zero."""
        self.fetched = 0
        self.store.reset()

    @property
    def requests(self) -> int:
        """Opens and reads so far."""
        return self.store.requests

    def shard(self, name: str) -> list[Sample]:
        """Fetch all samples of a shard: one open and one read."""
        with self.store.open(name) as file:
            samples = [np.frombuffer(content, np.float32) for content in read_tar_members(file)]
        self.fetched += len(samples)
        return samples

    def sample(self, index: int) -> Sample:
        """Fetch a single sample by its stored position: one open and one read as well."""
        name, offset, size = self._places[index]
        with self.store.open(name, size) as file:
            file.seek(offset)
            content = file.read(size)
        self.fetched += 1
        return np.frombuffer(content, np.float32)

    def _index(self, name: str) -> list[tuple[str, int, int]]:
        with tarfile.open(self.store.folder / name) as tar:
            return [(name, member.offset_data, member.size) for member in tar]


@dataclass(frozen=True, kw_only=True)
class EpochCheck:
    """The requests of an epoch, and what is wrong with the epochs; `problem` is empty if nothing is."""

    requests: int
    most_samples: int  # fetched and not yet yielded, at most
    labels: float  # mean number of different labels in a batch of 32
    problem: str

    @property
    def score(self) -> int | None:
        """The requests, or None if there is a problem."""
        return None if self.problem else self.requests


def check_epochs(read_epoch: EpochReader, store: ShardStore) -> EpochCheck:
    """Read two epochs, and check that each has every sample once, mixed, in its own order and in little memory."""
    orders, requests, most, labels = [], 0, 0, math.inf
    for epoch in range(2):
        store.reset()
        samples: list[Sample] = []
        for sample in read_epoch(store, epoch):
            most = max(most, store.fetched - len(samples))
            samples.append(sample)
        requests = max(requests, store.requests)
        labels = min(labels, labels_per_batch([int(sample[0]) for sample in samples]))
        orders.append([sample.tobytes() for sample in samples])
    return EpochCheck(
        requests=requests, most_samples=most, labels=labels, problem=_problem(orders, most, labels, store.count)
    )


def _problem(orders: list[list[bytes]], most: int, labels: float, count: int) -> str:
    if any(len(order) != count or len(set(order)) != count for order in orders):
        return f"an epoch has {len(orders[0]):,} samples, {len(set(orders[0])):,} of them different, not all {count:,}"
    if orders[0] == orders[1]:
        return "both epochs have the same order"
    if most > MOST_SAMPLES:
        return f"{most:,} samples were in memory at once, {MOST_SAMPLES:,} are allowed"
    if labels < LEAST_LABELS:
        return f"a batch has {labels:.1f} labels on average, at least {LEAST_LABELS} are needed"
    return ""
