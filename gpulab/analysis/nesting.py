"""Which events of a thread lie inside which: call trees without building trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.tables import Rows

Mask = NDArray[np.bool_]


def outermost(rows: Rows) -> Mask:
    """The rows inside no other row of the same thread. Assumes that rows of a thread nest, as calls do."""
    order, thread, _, end = _in_call_order(rows)
    mask = np.empty(len(order), bool)
    for code in np.unique(thread):
        mine = np.flatnonzero(thread == code)
        reach = np.maximum.accumulate(end[mine])
        outer = np.ones(len(mine), bool)
        outer[1:] = end[mine][1:] > reach[:-1]
        mask[order[mine]] = outer
    return mask


def leaves(rows: Rows) -> Mask:
    """The rows that hold no other row of the same thread. Assumes that rows of a thread nest, as calls do."""
    order, thread, start, end = _in_call_order(rows)
    mask = np.ones(len(order), bool)
    if len(order) > 1:
        # In call order a row that holds another is followed at once by the first row it holds.
        holds = (thread[1:] == thread[:-1]) & (start[1:] < end[:-1])
        mask[order[:-1][holds]] = False
    return mask


def _in_call_order(rows: Rows) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Sorted by thread, then start, the longer first."""
    start, dur, thread = rows["start_ns"], rows["dur_ns"], rows["thread"]
    order = np.lexsort((-dur, start, thread))
    return order, thread[order], start[order], (start + dur)[order]
