"""Work that comes again and again, as the rows of a batch do that a loop takes one by one.

A trace does not tell what an operator reads. That one reads what the one before it wrote is a guess, by their sizes
and by nothing else standing between them; where the same pattern comes many times over, the likelier guess is a loop
whose rounds know nothing of one another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.intervals import Ints

TIMES = 8  # a formula written out repeats itself less: polynomials of a few terms, multiply and add in turn
LONGEST = 24  # pieces of a pattern that are looked for


@dataclass(frozen=True, eq=False)
class Repeats:
    """Where the rounds of loops begin, and which places are part of one."""

    begins: Mask  # a piece that begins a round, and does not read what the one before it wrote
    member: Mask


def repeats(key: Ints, alone: Mask) -> Repeats:
    """Find what comes again and again in a row of work.

    `key`: one number for pieces of the same kind and size; what may be no part of a pattern has one of its own.
    `alone`: pieces that never follow their own kind on the same data: the softmax of a softmax makes no sense, while
    sums of sums do.
    """
    count = len(key)
    begins, member = np.zeros(count, bool), np.zeros(count, bool)
    begins[1:] = (key[1:] == key[:-1]) & alone[1:]
    for length in range(1, min(LONGEST, count // TIMES) + 1):
        first, last = _stretches(key[length:] == key[:-length])
        # So many in a row are like the one a pattern before them: that pattern comes once more than they tell.
        long = last - first >= (TIMES - 1) * length
        first, last = first[long], last[long] + length
        # What a shorter pattern explains wholly, a longer one made of it does not explain again.
        so_far = np.concatenate([[0], np.cumsum(member)])
        new = so_far[last] - so_far[first] < last - first
        first, last = first[new], last[new]
        place, offset = _places(first, last)
        begins[place[offset % length == 0]] = True
        member[place] = True
    return Repeats(begins, member)


def in_a_row(key: Ints) -> Mask:
    """Pieces that the same piece comes before and after, so many times in a row."""
    first, last = _stretches(key[1:] == key[:-1])
    long = last - first >= TIMES - 1
    member = np.zeros(len(key), bool)
    member[_places(first[long], last[long] + 1)[0]] = True
    return member


def _stretches(mask: Mask) -> tuple[Ints, Ints]:
    """The stretches where it is true: first, and one past the last."""
    edges = np.diff(np.concatenate([[0], mask.astype(np.int8), [0]]))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def _places(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """All places of these stretches, and how far each is from the beginning of its own."""
    long = last - first
    offset = np.arange(int(long.sum())) - np.repeat(np.cumsum(long) - long, long)
    return np.repeat(first, long) + offset, offset


def keyed(*columns: Ints, part: Mask) -> Ints:
    """One number for each kind of these columns' rows; what is no part gets a number of its own."""
    table = np.stack([np.asarray(column, np.int64) for column in columns])
    _, key = np.unique(table, axis=1, return_inverse=True)
    return np.where(part, key.reshape(-1), -1 - np.arange(table.shape[1]))
