"""Repeated patterns in a sequence of work, such as a Python loop over the rows of a batch.

A trace does not show the inputs of an operator. That it reads the output of the previous one is inferred from equal
sizes and adjacency. If the same pattern repeats many times, independent iterations of a loop are more likely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.intervals import Ints

MIN_PATTERN_REPEATS = 8  # minimum repeats; a written-out formula repeats less often, such as the terms of a polynomial
MAX_PATTERN_LENGTH = 24  # maximum length of a pattern


@dataclass(frozen=True, eq=False)
class Repeats:
    """Positions at which loop iterations start, and all positions inside loops."""

    starts_iteration: Mask  # starts an iteration, so it does not read the output of the previous item
    in_loop: Mask


def find_repeats(key: Ints, alone: Mask) -> Repeats:
    """Find repeated patterns in a sequence of work.

    `key`: equal for items of the same kind and size, unique for items that cannot be part of a pattern. `alone`: mask
    of items that are never applied twice to the same data: a softmax of a softmax makes no sense, a sum of sums does.
    """
    count = len(key)
    begins, member = np.zeros(count, bool), np.zeros(count, bool)
    begins[1:] = (key[1:] == key[:-1]) & alone[1:]
    for length in range(1, min(MAX_PATTERN_LENGTH, count // MIN_PATTERN_REPEATS) + 1):
        first, last = _true_runs(key[length:] == key[:-length])
        # Each of these items equals the one a pattern length before; the first occurrence comes on top.
        long = last - first >= (MIN_PATTERN_REPEATS - 1) * length
        first, last = first[long], last[long] + length
        # Skip runs that a shorter pattern already covers completely.
        cumulative = np.concatenate([[0], np.cumsum(member)])
        new = cumulative[last] - cumulative[first] < last - first
        first, last = first[new], last[new]
        position, offset = _positions(first, last)
        begins[position[offset % length == 0]] = True
        member[position] = True
    return Repeats(begins, member)


def in_runs_of_equals(key: Ints) -> Mask:
    """Return a mask of the items in runs of at least TIMES equal items."""
    first, last = _true_runs(key[1:] == key[:-1])
    long = last - first >= MIN_PATTERN_REPEATS - 1
    member = np.zeros(len(key), bool)
    member[_positions(first[long], last[long] + 1)[0]] = True
    return member


def _true_runs(mask: Mask) -> tuple[Ints, Ints]:
    """Return the runs of True values: first, and one past the last."""
    edges = np.diff(np.concatenate([[0], mask.astype(np.int8), [0]]))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)


def _positions(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Return all positions in these runs, and the offset of each within its run."""
    length = last - first
    offset = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    return np.repeat(first, length) + offset, offset


def row_keys(*columns: Ints, part: Mask) -> Ints:
    """Return one number per distinct row of the columns, and a unique number for items outside `part`."""
    key = np.zeros(int(part.sum()), np.int64)
    for column in columns:
        _, code = np.unique(np.asarray(column, np.int64)[part], return_inverse=True)
        _, key = np.unique(key * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    keys = -1 - np.arange(len(part))
    keys[part] = key
    return keys
