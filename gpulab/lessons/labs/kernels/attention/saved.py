"""The tensors that a forward pass saves for the backward pass, by shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpulab.lessons.labs import tables
from gpulab.lessons.labs.host.operators import saved_tensors
from gpulab.views.sheet.view import View
from gpulab.wording import percent, size

if TYPE_CHECKING:
    from torch import nn


def saved_by_shape(run: Callable[[], object], model: nn.Module | None = None) -> dict[tuple[int, ...], int]:
    """Return the bytes that a forward pass saves for the backward pass, by shape of the tensors, the largest first."""
    totals: Counter[tuple[int, ...]] = Counter()
    for tensor in saved_tensors(run, model):
        totals[tuple(tensor.shape)] += tensor.untyped_storage().nbytes()
    return dict(totals.most_common())


def saved_table(bytes_by_shape: dict[tuple[int, ...], int], most: int = 5) -> View:
    """Show the shapes with the most bytes, and their share."""
    total = sum(bytes_by_shape.values())
    lines = [
        (" x ".join(map(str, shape)), size(count), percent(count / total))
        for shape, count in list(bytes_by_shape.items())[:most]
    ]
    return tables.table_view(("shape", "saved", "share"), lines, below=f"{size(total)} in total, counted here.")
