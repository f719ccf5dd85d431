"""The DataLoaders that the training loop iterates over, by the marks of their calls and of the optimizers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.named_phases import loop_marks
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import MarkKind

RARE_UPDATES_FRAC = 0.01  # of batches: fewer updates do not make a DataLoader one that is trained on


def training_loader_index(marks: Rows) -> int:
    """Return the index of the DataLoader with the most batches among those that are trained on, else among all.

    -1 if the marks name none, as in very old files.
    """
    calls, updates = marks.of_kind(MarkKind.NEXT), marks.of_kind(MarkKind.OPTIMIZER)["end_ns"]
    loader = calls["loader"][calls["yielded"] & (calls["loader"] >= 0)]
    if not len(loader):
        return int(calls["loader"].max(initial=-1))
    counts = np.bincount(loader)
    used = np.flatnonzero(counts)
    trained_on = [index for index in used if len(used) > 1 and is_trained_on(calls, int(index), updates)]
    return int(max(trained_on or used, key=lambda index: (counts[index], -index)))


def is_trained_on(calls: Rows, loader: int, updates: Ints) -> bool:
    """Whether updates come within the batches of this DataLoader."""
    start, end = loader_batches(calls, loader)
    counted = _with_own_end(_epochs(calls, loader, len(start)))
    return updates_in(updates, start[counted], end[counted]) > RARE_UPDATES_FRAC * int(counted.sum())


def trained_batches(calls: Rows, loader: int, updates: Ints) -> tuple[Ints, Ints]:
    """Return start and end of the batches of this DataLoader, without passes in which nothing is updated.

    A loop may evaluate the model on its training data, with the same DataLoader.
    """
    start, end = loader_batches(calls, loader)
    epochs = _epochs(calls, loader, len(start))
    has_update = (np.searchsorted(updates, end) > np.searchsorted(updates, start)) & _with_own_end(epochs)
    _, number = np.unique(epochs, return_inverse=True)
    batches, updated = np.bincount(number), np.bincount(number, weights=has_update)
    is_trained = (updated > RARE_UPDATES_FRAC * batches)[number]
    return (start[is_trained], end[is_trained]) if is_trained.any() else (start, end)


def _epochs(calls: Rows, loader: int, batches: int) -> Ints:
    """Return the number of the pass of each of the first batches of this DataLoader."""
    epochs: Ints = calls["epoch"][(calls["loader"] == loader) & calls["yielded"].astype(bool)][:batches]
    return epochs


def _with_own_end(epochs: Ints) -> NDArray[np.bool_]:
    """Return which batches are not the last one of a pass, or all if most passes are a batch or two.

    The last batch of a pass that the program ends early has no end of its own: in a validation, training follows it.
    """
    is_last = np.append(epochs[1:] != epochs[:-1], False)[: len(epochs)]
    if is_last.all() or 2 * is_last.sum() > len(epochs):
        return np.ones(len(epochs), bool)
    return ~is_last


def updates_in(updates: Ints, start: Ints, end: Ints) -> int:
    """Return how many of these batches had an update."""
    return int((np.searchsorted(updates, end) > np.searchsorted(updates, start)).sum())


def loader_batches(calls: Rows, loader: int) -> tuple[Ints, Ints]:
    """Return start and end of batches that last from one call of `__next__` to the next: fetch, then compute.

    A pass ends with the call that yields no batch.
    """
    calls = calls.select(calls["loader"] == loader)
    begins = np.flatnonzero(calls["yielded"])
    start = calls["start_ns"][begins]
    following = np.append(calls["start_ns"], calls["end_ns"].max(initial=0))[begins + 1]
    last_of_run = begins == len(calls) - 1
    return start[~last_of_run], following[~last_of_run]


def passes_over_data(run: Run) -> int | None:
    """Return how often the DataLoader of the training loop was iterated; None without one."""
    calls = loop_marks(run).of_kind(MarkKind.NEXT)
    if not len(calls):
        return None
    return len(np.unique(calls["epoch"][calls["loader"] == training_loader_index(loop_marks(run))]))
