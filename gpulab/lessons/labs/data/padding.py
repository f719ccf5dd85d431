"""Batches of sequences with different lengths: how much padding they need, and how large the largest batch is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.wording import count, percent

Batches = list[list[int]]  # the sequence indices of each batch


@dataclass(frozen=True, kw_only=True)
class PaddingCost:
    """The cost of padding each sequence to the longest one of its batch."""

    batches: int
    tokens: int  # without padding
    padded_tokens: int  # with padding
    largest_tokens: int  # of the largest batch, padding included: it determines peak memory

    @property
    def padding_frac(self) -> float:
        """Padding / all computed tokens."""
        return 1 - self.tokens / self.padded_tokens

    def __str__(self) -> str:
        batches = count(self.batches, "batch")
        return f"{percent(self.padding_frac)} padding, {batches}, {self.largest_tokens:,} tokens in the largest batch"


def padding_cost(lengths: Sequence[int], batches: Batches) -> PaddingCost:
    """Count the tokens and the padding of one epoch."""
    sizes = [len(batch) * max((lengths[each] for each in batch), default=0) for batch in batches]
    tokens = sum(lengths[each] for batch in batches for each in batch)
    return PaddingCost(batches=len(batches), tokens=tokens, padded_tokens=sum(sizes), largest_tokens=max(sizes))


def random_batches(lengths: Sequence[int], size: int, seed: int = 0) -> Batches:
    """Return random batches of `size`, as DataLoader(shuffle=True) does."""
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    return _cut(order, size)


def bucketed_batches(lengths: Sequence[int], size: int, pool: int = 16, seed: int = 0) -> Batches:
    """Return batches of `size` with similar lengths: sort within pools of `pool` batches, then shuffle the batches.

    A small pool keeps more randomness, which training needs; a large pool saves more padding.
    """
    generator = random.Random(seed)
    order = list(range(len(lengths)))
    generator.shuffle(order)
    batches = [
        batch for indices in _cut(order, size * pool) for batch in _cut(sorted(indices, key=lengths.__getitem__), size)
    ]
    generator.shuffle(batches)
    return batches


def _cut(order: Sequence[int], size: int) -> Batches:
    return [list(order[start : start + size]) for start in range(0, len(order), size)]
