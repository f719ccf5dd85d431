"""Rows of numbers, with a label that a small model can learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = 4


def table(rows: int = 4096, columns: int = 32, seed: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return features (rows, columns) and labels (rows,): the index of the largest of four random projections."""
    random_state = np.random.default_rng(seed)
    features: npt.NDArray[Any] = random_state.normal(0, 1, (rows, columns)).astype(np.float32)
    directions = random_state.normal(0, 1, (columns, CLASSES))
    return features, np.argmax(features @ directions, axis=1).astype(np.int64)
