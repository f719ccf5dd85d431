"""What some of the first batches of a DataLoader consist of, and how much of them is padding or ignored."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from gpulab.capture.hooks.batch_contents import describe_batch
from gpulab.capture.hooks.batch_labels import BatchLabels, measure_labels
from gpulab.capture.hooks.batch_padding import BatchPadding, measure_padding
from gpulab.run import Loader

_LAST_INSPECTED = 128  # the 1st, 2nd, 4th, 8th ... batch
_MAX_SPENT_NS = 10_000_000  # in all batches of a DataLoader
_MIN_SAME = 3  # batches of one length; two may be so by chance
_MIN_GROUPED = 4  # batches whose samples could share batches with others of similar length


class BatchInspection:
    """Inspects the 1st, 2nd, 4th ... 128th batch of one DataLoader, for 10 ms at most plus one batch."""

    def __init__(self) -> None:
        self._batches = 0
        self._next = 1
        self._spent_ns = 0
        self._padding: list[BatchPadding] = []
        self._labels: list[BatchLabels] = []

    def is_due(self) -> bool:
        """Count a batch; return whether it is one to inspect."""
        self._batches += 1
        if self._batches != self._next:
            return False
        self._next = 2 * self._next if self._next < _LAST_INSPECTED and self._spent_ns < _MAX_SPENT_NS else 0
        return True

    def inspect(self, batch: Any, loader: Loader) -> Loader:
        """Return the settings of the DataLoader with what its batches show."""
        began_ns = time.thread_time_ns()
        if self._batches == 1 and (contents := describe_batch(batch)) is not None:
            loader = replace(
                loader,
                batch_tensors=contents.tensors,
                batch_bytes=contents.bytes,
                batch_objects=contents.objects,
            )
        padding = measure_padding(batch)
        if padding is not None:
            self._padding.append(padding)
            loader = self._with_padding(loader)
        labels = measure_labels(batch, loader.ignore_index)
        if labels is not None:
            self._labels.append(labels)
            ignored = sum([each.ignored for each in self._labels])
            positions = sum([each.positions for each in self._labels])
            loader = replace(loader, ignored_frac=ignored / positions if ignored else None)
        self._spent_ns += time.thread_time_ns() - began_ns
        return loader

    def _with_padding(self, loader: Loader) -> Loader:
        """Return the settings with the padding of all inspected batches; one that shows none counts as without."""
        padded = [batch for batch in self._padding if batch.padding is not None]
        if not padded:
            return loader
        positions = sum(batch.positions for batch in self._padding)
        return replace(
            loader,
            padding_frac=sum(batch.padding or 0 for batch in padded) / positions,
            padding_to_longest_frac=sum(batch.beyond_longest for batch in padded) / positions,
            padding_in_groups_frac=_padding_in_groups(self._padding),
            row_length=positions / sum(batch.rows for batch in self._padding),
            same_row_length=_have_same_length(self._padding),
            can_be_cut=all([batch.can_be_cut for batch in self._padding]),
        )


def _have_same_length(batches: list[BatchPadding]) -> bool | None:
    """Whether rows are padded to a fixed length, not to the longest of their batch; None for too few batches."""
    if len(batches) < _MIN_SAME:
        return None
    lengths = {batch.positions / batch.rows for batch in batches}
    return len(lengths) == 1 and any([batch.beyond_longest for batch in batches])


def _padding_in_groups(batches: list[BatchPadding]) -> float | None:
    """Return padding / positions if the same samples shared batches with those of similar length, by their total.

    Samples with several sequences keep some: a long question may have a short answer. None for samples with one
    sequence, for few batches, and if the rows of a tensor cannot be told apart by sample.
    """
    counts = {tuple([len(lengths) for lengths in batch.lengths]) for batch in batches}
    rows = min(counts, default=())
    if len(batches) < _MIN_GROUPED or len(counts) != 1 or not rows or sum(rows) == min(rows):
        return None
    if any([count % min(rows) for count in rows]):
        return None
    # The rows of a sample may follow each other, or be as far apart as the batch is large.
    layouts = [_padding_of_layout(batches, min(rows), is_in_turn) for is_in_turn in (False, True)]
    return min(layouts) / sum(batch.positions for batch in batches)


def _padding_of_layout(batches: list[BatchPadding], size: int, is_in_turn: bool) -> int:
    """Return the positions of padding that are left in batches of so many samples."""
    tensors = []
    for of_batches in zip(*[batch.lengths for batch in batches], strict=True):
        by_sample = [rows.reshape(-1, size).T if is_in_turn else rows.reshape(size, -1) for rows in of_batches]
        tensors.append(np.concatenate(by_sample))
    order = np.argsort(np.concatenate(tensors, axis=1).sum(axis=1), kind="stable")
    left = 0
    for lengths in tensors:
        groups = lengths[order].reshape(len(batches), -1)
        left += int((groups.max(axis=1, keepdims=True) - groups).sum())
    return left
