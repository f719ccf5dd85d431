"""How many labels of a batch the loss ignores, read from the memory of its tensors as in `batch_padding`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpulab.capture.hooks.batch_padding import integer_arrays, is_mask


class BatchLabels(NamedTuple):
    """Positions of the labels of a batch, and how many of them the loss ignores."""

    positions: int
    ignored: int


def measure_labels(batch: Any, ignore_index: int) -> BatchLabels | None:
    """Count the labels with this value in the labels of a batch: one of its integer tensors (rows x positions).

    A negative value occurs in labels only. Any other may also pad the inputs; then the last tensor counts as labels.
    None without such a tensor. Masks of 0 and 1 are no labels.
    """
    counts = [
        BatchLabels(array.size, int(np.count_nonzero(array == ignore_index)))
        for array in integer_arrays(batch)
        if not is_mask(array)
    ]
    if ignore_index < 0:
        return max(counts, key=lambda labels: labels.ignored / labels.positions, default=None)
    return counts[-1] if counts else None
