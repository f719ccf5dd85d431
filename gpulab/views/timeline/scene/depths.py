"""Call depth of the events of a thread: a fraction of a second for a million events."""

from __future__ import annotations

import numpy as np

from gpulab.intervals import Ints

ROUNDING_NS = 2_000  # neighbours may overlap by this much and still be neighbours: old traces count in microseconds


def call_depths(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the call depth of each event of one thread: the number of events that contain it.

    Events are sorted by start, and the longer first. Where calls nest, the depth is the number of events that have
    begun minus the number that have ended. Where some overlap without nesting, each is placed beneath the events that
    are open at its start, so that no two events of one depth overlap by more than a rounding error.
    """
    if not len(start_ns):
        return np.empty(0, np.int64)
    ends = np.sort(np.maximum(end_ns, start_ns + 1))  # an event of zero duration is open for 1 ns
    depth: Ints = np.arange(len(start_ns)) - np.searchsorted(ends, start_ns, side="right")
    return depth if _is_nested(start_ns, end_ns, depth) else _stack_depths(start_ns, end_ns)


def _is_nested(start_ns: Ints, end_ns: Ints, depth: Ints) -> bool:
    """Return whether each event ends before the event that was open when it began."""
    order = np.argsort(depth.astype(np.int32), kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(depth)))
    for level in range(1, len(bounds) - 1):
        parents, children = (order[bounds[index] : bounds[index + 1]] for index in (level - 1, level))
        parent = np.searchsorted(start_ns[parents], start_ns[children], side="right") - 1
        if (end_ns[children] > end_ns[parents][np.maximum(parent, 0)]).any():
            return False
    return True


def _stack_depths(start_ns: Ints, end_ns: Ints) -> Ints:
    """Compute depths event by event with a stack, for threads whose events do not nest."""
    depth = np.empty(len(start_ns), np.int64)
    open_ends: list[int] = []  # the index is the depth
    for index, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while open_ends and open_ends[-1] - start <= _allowed_overlap(start, end, open_ends[-1]):
            open_ends.pop()
        depth[index] = len(open_ends)
        open_ends.append(end)
    return depth


def _allowed_overlap(start: int, end: int, open_end: int) -> int:
    """Return by how many ns the open event may overlap this one as a neighbour; 0 if it contains this one."""
    return min(ROUNDING_NS, (end - start) // 2) if open_end < end else 0
