"""Documents converted to word-pair counts in pure Python: CPU-bound items, with few cores."""

from __future__ import annotations

import functools
import itertools
import zlib
from typing import TYPE_CHECKING

import numpy as np

from gpulab.workloads.training import batch_loader, perceptron, torch_threads, train_classifier
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WORDS_PER_DOCUMENT = 3000  # per document
FEATURES = 2048
BATCH = 32
DISTINCT = 64  # documents; each is used many times, as in several epochs


class Documents:
    """A dataset of texts; each access counts the text again."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.texts = make_word_pairs(DISTINCT)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        text_index = index % len(self.texts)
        return word_pairs(self.texts[text_index]), text_index % 10


class PrecountedDocuments(Documents):
    """The same texts, each counted once, before training."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.counted = [word_pairs(text) for text in self.texts]

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        text_index = index % len(self.texts)
        return self.counted[text_index], text_index % 10


def word_pairs(text: bytes) -> Tensor:
    """Return how often each pair of neighbouring words occurs, hashed to a fixed number of features."""
    import torch

    counts = [0.0] * FEATURES
    tokens = text.split()
    for first, second in itertools.pairwise(tokens):
        counts[zlib.crc32(second, zlib.crc32(first)) % FEATURES] += 1
    return torch.tensor(counts).sqrt()


@functools.lru_cache(maxsize=1)
def make_word_pairs(count: int) -> tuple[bytes, ...]:
    """Return texts of random words, the same every time; those of one class share a vocabulary."""
    random_state = np.random.default_rng(0)
    vocabulary = [bytes(random_state.integers(97, 123, random_state.integers(2, 10)).tolist()) for _ in range(5000)]
    documents = []
    for index in range(count):
        picks = random_state.zipf(1.3, WORDS_PER_DOCUMENT) * (index % 10 + 1) % len(vocabulary)
        documents.append(b" ".join(vocabulary[pick] for pick in picks))
    return tuple(documents)


def train_on_documents(
    *, device: str = "cpu", steps: int = 50, workers: int = 0, count_once: bool = False
) -> list[float]:
    """Train a small classifier on word-pair counts, computed for every batch or once in advance."""
    documents = PrecountedDocuments(steps * BATCH) if count_once else Documents(steps * BATCH)
    loader = batch_loader(documents, BATCH, device, workers=workers)
    with torch_threads(1):
        return train_classifier(perceptron(FEATURES, 1024, 256, 10), loader, device)


WORD_PAIRS = (
    Workload(
        name="counting",
        about="Documents counted in pure Python by the main process; workers would need more cores.",
        run=train_on_documents,
        rule="no_workers",
        twin="counting_once",
        twin_applies_fix=False,
    ),
    Workload(
        name="counting_workers",
        about="Documents counted in pure Python by two workers, which use two cores fully and are still too slow.",
        run=functools.partial(train_on_documents, workers=2),
        rule="cpu_bound_loading",
        twin="counting_once",
    ),
    Workload(
        name="counting_once",
        about="The same documents, each counted once before training.",
        run=functools.partial(train_on_documents, steps=250, count_once=True),
        rule=None,
    ),
)
