"""Documents turned into word-pair counts in pure Python: items that need a core, where cores are few."""

from __future__ import annotations

import functools
import itertools
import zlib
from typing import TYPE_CHECKING

import numpy as np

from gpulab.workloads.training import batch_loader, classify, computing_on, perceptron
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WORDS = 3000  # in a document
FEATURES = 2048
BATCH = 32
DISTINCT = 64  # documents; each is used many times, as over several epochs


class Documents:
    """A dataset of texts, each counted anew whenever it is asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.texts = texts(DISTINCT)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        which = index % len(self.texts)
        return word_pairs(self.texts[which]), which % 10


class CountedDocuments(Documents):
    """The same texts, each counted once, before training begins."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.counted = [word_pairs(text) for text in self.texts]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        which = index % len(self.texts)
        return self.counted[which], which % 10


def word_pairs(text: bytes) -> Tensor:
    """How often each pair of neighbouring words occurs, pairs hashed to a fixed number of features."""
    import torch

    counts = [0.0] * FEATURES
    words = text.split()
    for first, second in itertools.pairwise(words):
        counts[zlib.crc32(second, zlib.crc32(first)) % FEATURES] += 1
    return torch.tensor(counts).sqrt()


@functools.lru_cache(maxsize=1)
def texts(count: int) -> tuple[bytes, ...]:
    """Texts of made-up words, the same every time; those of one class share a vocabulary."""
    chance = np.random.default_rng(0)
    vocabulary = [bytes(chance.integers(97, 123, chance.integers(2, 10)).tolist()) for _ in range(5000)]
    made = []
    for index in range(count):
        picks = chance.zipf(1.3, WORDS) * (index % 10 + 1) % len(vocabulary)
        made.append(b" ".join(vocabulary[pick] for pick in picks))
    return tuple(made)


def train_on_documents(
    *, device: str = "cpu", steps: int = 50, workers: int = 0, count_once: bool = False
) -> list[float]:
    """Train a small classifier on word-pair counts, counted for every batch or once ahead."""
    documents = CountedDocuments(steps * BATCH) if count_once else Documents(steps * BATCH)
    loader = batch_loader(documents, BATCH, device, workers=workers)
    with computing_on(1):
        return classify(perceptron(FEATURES, 1024, 256, 10), loader, device)


COUNTING = (
    Workload(
        name="counting",
        about="Documents counted in pure Python by the main process; workers would need cores to count on.",
        run=train_on_documents,
        rule="no_workers",
        twin="counting_once",
        mends=False,
    ),
    Workload(
        name="counting_workers",
        about="Documents counted in pure Python by two workers, which fill two cores and still are late.",
        run=functools.partial(train_on_documents, workers=2),
        rule="cpu_bound_loading",
        twin="counting_once",
    ),
    Workload(
        name="counting_once",
        about="The same documents, each counted once before training begins.",
        run=functools.partial(train_on_documents, steps=250, count_once=True),
        rule=None,
    ),
)
