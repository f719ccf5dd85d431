"""How deep in calls each event of a thread lies: for a million events in a fraction of a second."""

from __future__ import annotations

import numpy as np

from gpulab.intervals import Ints

ROUNDED_NS = 2_000  # neighbours may overlap by so much and still be neighbours: old traces count in microseconds


def depths(start_ns: Ints, end_ns: Ints) -> Ints:
    """For each event of one thread, in order of start with the longer first, how many hold it.

    Where calls nest, that is how many have begun less how many are over. Where some overlap without the one holding
    the other, each is put beneath what is open, so that no two of one depth overlap by more than a rounding.
    """
    if not len(start_ns):
        return np.empty(0, np.int64)
    closed = np.sort(np.maximum(end_ns, start_ns + 1))  # an event of no time is open for an instant
    depth: Ints = np.arange(len(start_ns)) - np.searchsorted(closed, start_ns, side="right")
    return depth if _nest(start_ns, end_ns, depth) else _stacked(start_ns, end_ns)


def _nest(start_ns: Ints, end_ns: Ints, depth: Ints) -> bool:
    """Whether each event ends before the one that was open when it began."""
    order = np.argsort(depth.astype(np.int32), kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(depth)))
    for level in range(1, len(bounds) - 1):
        above, mine = (order[bounds[each] : bounds[each + 1]] for each in (level - 1, level))
        parent = np.searchsorted(start_ns[above], start_ns[mine], side="right") - 1
        if (end_ns[mine] > end_ns[above][np.maximum(parent, 0)]).any():
            return False
    return True


def _stacked(start_ns: Ints, end_ns: Ints) -> Ints:
    """The same, one event after the other: for threads whose events do not nest."""
    found = np.empty(len(start_ns), np.int64)
    open_ends: list[int] = []  # the place in it is the depth
    for place, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while open_ends and open_ends[-1] - start <= _rounding(start, end, open_ends[-1]):
            open_ends.pop()
        found[place] = len(open_ends)
        open_ends.append(end)
    return found


def _rounding(start: int, end: int, open_end: int) -> int:
    """By how much the open event may reach into this one as a neighbour; 0 where it holds it."""
    return min(ROUNDED_NS, (end - start) // 2) if open_end < end else 0
