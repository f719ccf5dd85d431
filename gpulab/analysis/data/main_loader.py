"""The DataLoader that feeds the training loop, by the marks of its calls."""

from __future__ import annotations

import numpy as np

from gpulab.rows import Rows


def main_loader_index(calls: Rows) -> int:
    """Return the index of the DataLoader with the most batches; -1 if the marks name none, as in very old files."""
    loader = calls["loader"][calls["yielded"] & (calls["loader"] >= 0)]
    return int(np.bincount(loader).argmax()) if len(loader) else int(calls["loader"].max(initial=-1))
