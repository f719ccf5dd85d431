"""Samples sorted by label, and what the order of training does to a small network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CLASSES, FEATURES = 10, 255
_SPREAD = 0.25  # distance of the class centres, in standard deviations of the noise
_BATCH, _HIDDEN, _RATE = 32, 64, 0.1

LabelledRows = npt.NDArray[np.float32]


def labelled_rows(count: int, seed: int = 0) -> LabelledRows:
    """Return (count, 256) numbers, sorted by label: the label of each row, 0 to 9, and its 255 features.

    Rows of two seeds have the same classes and other noise.
    """
    centres = np.random.default_rng(0).normal(0, _SPREAD, (CLASSES, FEATURES))
    labels = np.sort(np.arange(count) % CLASSES)
    features = centres[labels] + np.random.default_rng(seed + 1).normal(0, 1, (count, FEATURES))
    return np.column_stack([labels, features]).astype(np.float32)


def accuracy_after(rows: LabelledRows, order: Sequence[int], seed: int = 0) -> float:
    """Train a network of two layers on the rows in this order, once; return its accuracy on 2,000 new rows, 0-1."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    ordered = torch.from_numpy(rows[np.asarray(order, dtype=np.int64)])
    for batch in ordered.split(_BATCH):
        loss = nn.functional.cross_entropy(model(batch[:, 1:]), batch[:, 0].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    new = torch.from_numpy(labelled_rows(2000, seed=1000))
    with torch.no_grad():
        return float((model(new[:, 1:]).argmax(dim=1) == new[:, 0]).float().mean())
