"""How well a stream of samples is mixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def label_runs(labels: Sequence[int]) -> int:
    """Count the runs of equal labels: as few as there are labels if sorted, about 0.9 per sample if ten are mixed."""
    stream = np.asarray(labels)
    return int(len(stream) > 0) + int(np.count_nonzero(stream[1:] != stream[:-1]))


def labels_per_batch(labels: Sequence[int], batch: int = 32) -> float:
    """Return the mean number of different labels in a full batch."""
    stream = np.asarray(labels)
    full = stream[: len(stream) // batch * batch].reshape(-1, batch)
    return float(np.mean([len(np.unique(part)) for part in full])) if len(full) else 0.0


def position_correlation(order: Sequence[int]) -> float:
    """Return the correlation of the position in a stream with the stored position: 1 if unchanged, 0 if mixed."""
    return float(np.corrcoef(np.arange(len(order)), np.asarray(order))[0, 1])
