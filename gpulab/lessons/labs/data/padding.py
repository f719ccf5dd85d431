"""Sequences of many lengths in batches: who pads how much, and how large the largest batch is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.wording import count, percent

Batches = list[list[int]]  # of each batch, which sequences are in it


@dataclass(frozen=True, kw_only=True)
class Padded:
    """What a model is given where each sequence is filled up to the longest of its batch."""

    batches: int
    tokens: int  # that mean something
    padded_tokens: int  # computed on: those and the padding
    largest_tokens: int  # of the largest batch, padding included: what memory has to hold

    @property
    def padding_frac(self) -> float:
        """Of what is computed on, the share that is padding."""
        return 1 - self.tokens / self.padded_tokens

    def __str__(self) -> str:
        batches = count(self.batches, "batch")
        return f"{percent(self.padding_frac)} padding, {batches}, {self.largest_tokens:,} tokens in the largest"


def padded(lengths: Sequence[int], batches: Batches) -> Padded:
    """Count one pass over these batches."""
    sizes = [len(batch) * max(lengths[each] for each in batch) for batch in batches]
    tokens = sum(lengths[each] for batch in batches for each in batch)
    return Padded(batches=len(batches), tokens=tokens, padded_tokens=sum(sizes), largest_tokens=max(sizes))


def at_random(lengths: Sequence[int], size: int, seed: int = 0) -> Batches:
    """Batches of `size`, drawn as DataLoader(shuffle=True) draws them."""
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    return _cut(order, size)


def bucketed(lengths: Sequence[int], size: int, pool: int = 16, seed: int = 0) -> Batches:
    """Batches of `size` with like lengths: sorted within pools of so many batches, and the batches in random order.

    A small pool keeps more of the chance that training lives on, a large one saves more padding.
    """
    chance = random.Random(seed)
    order = list(range(len(lengths)))
    chance.shuffle(order)
    batches = [
        batch for drawn in _cut(order, size * pool) for batch in _cut(sorted(drawn, key=lengths.__getitem__), size)
    ]
    chance.shuffle(batches)
    return batches


def _cut(order: Sequence[int], size: int) -> Batches:
    return [list(order[start : start + size]) for start in range(0, len(order), size)]
