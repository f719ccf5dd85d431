"""Select the steps used as evidence from those that were recorded with events.

Events are recorded in windows, so the recorded steps form parts of adjacent steps. The first step of a part waits for
earlier work or for the profiler to start, and the profiler stops in the last one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints

Mask = NDArray[np.bool_]
WARM_UP_STEPS = 2  # the first steps of a loop include lazy initialisation and are never plain steps


def recorded_parts(recorded: Mask) -> list[Ints]:
    """Return the indices of the recorded steps, one array for each part of adjacent steps."""
    index = np.flatnonzero(recorded)
    return np.split(index, np.flatnonzero(np.diff(index) > 1) + 1) if len(index) else []


def longest_part(mask: Mask) -> Mask:
    """Return a mask of the longest part of adjacent steps of this mask, of equal ones the first."""
    longest = np.zeros(len(mask), bool)
    parts = recorded_parts(mask)
    if parts:
        longest[max(parts, key=len)] = True
    return longest


def is_edge(recorded: Mask) -> Mask:
    """Return a mask of the steps without a recorded step before or after them."""
    padded = np.concatenate([[False], recorded, [False]])
    edge: Mask = ~(padded[:-2] & padded[2:])
    return edge


def interior_of_parts(recorded: Mask) -> Mask:
    """Return a mask of the recorded steps that are used as evidence.

    These are all but the first and the last step of each part. If no part has three steps, they are the second of two;
    if no part has two, the single steps, without cold ones if there are others. `Steps.too_few` is then true.
    """
    parts = recorded_parts(recorded)
    longest = max(map(len, parts), default=0)
    if longest >= 3:
        evidence = [part[1:-1] for part in parts]
    elif longest == 2:
        evidence = [part[1:] for part in parts]
    else:
        evidence = [part for part in parts if part[0] >= WARM_UP_STEPS] or parts[-1:]
    interior = np.zeros(len(recorded), bool)
    if evidence:
        interior[np.concatenate(evidence)] = True
    return interior
