"""Steps by the marks of a recording: calls of gpulab.step(), of a DataLoader's `__next__`, or of optimizers."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.data.training_loader import (
    is_trained_on,
    loader_batches,
    trained_batches,
    training_loader_index,
    updates_in,
)
from gpulab.analysis.events.named_phases import loop_marks
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import MarkKind

USER, LOADER, OPTIMIZER, BACKWARD = (
    "gpulab.step()",
    "DataLoader",
    "optimizer",
    "backward pass",
)  # how steps were detected
MIN_UPDATES = 3  # with fewer, batches are the steps
RARE_FRAC = 0.1  # an optimizer that steps less often than this share of another one does not delimit iterations


def marked_steps(run: Run) -> tuple[Ints, Ints, str]:
    """Return start and end of each step, and the kind of mark used: gpulab.step(), DataLoader, optimizer, backward().

    If most batches come without an update between them, the DataLoader is not the one of the training loop.
    """
    marks = loop_marks(run)
    user = marks.of_kind(MarkKind.USER)["end_ns"]
    if len(user):
        return user[:-1], user[1:], USER
    updates = update_ends_ns(marks)
    if len(marks.of_kind(MarkKind.NEXT)):
        start, end = _training_batches(run, updates)
        if len(updates) <= len(start) or 2 * updates_in(updates, start, end) >= len(start):
            return *_accumulated(start, end, updates), LOADER
    if len(updates):
        return updates[:-1], updates[1:], OPTIMIZER
    backward = marks.of_kind(MarkKind.BACKWARD)["end_ns"]
    if len(backward):
        return backward[:-1], backward[1:], BACKWARD
    none = np.empty(0, np.int64)
    return none, none, "whole run"


def completed_steps(run: Run, detected_by: str, steps: int) -> int:
    """Return how many steps the run completed, of which `steps` have a start and an end.

    If the marks are at the ends of steps, the first step has an end but no start: it cannot be measured, but it counts.
    """
    marks = run.mark_rows
    ends = {USER: marks.of_kind(MarkKind.USER)["end_ns"], OPTIMIZER: update_ends_ns(marks)}
    ends[BACKWARD] = marks.of_kind(MarkKind.BACKWARD)["end_ns"]
    if detected_by == "whole run":
        return 1 if sum(map(len, ends.values())) == 1 else 0
    return max(steps, len(ends.get(detected_by, ())))


def update_ends_ns(marks: Rows) -> Ints:
    """Return the end of each iteration in which optimizers step.

    Several optimizers that take turns, as in a GAN or with one optimizer per parameter, form one iteration, which ends
    with the one that steps least often, and last among equals. Optimizers used one after the other do not take turns.
    """
    marks = marks.of_kind(MarkKind.OPTIMIZER)
    at, number = marks["end_ns"], marks["optimizer"]
    used = [at[number == value] for value in np.unique(number)]
    used.sort(key=lambda ends: int(ends[0]))
    alternating: list[list[Ints]] = []
    for ends in used:
        if alternating and ends[0] <= max(other[-1] for other in alternating[-1]):
            alternating[-1].append(ends)
        else:
            alternating.append([ends])
    return np.concatenate([_iteration_ends(group) for group in alternating]) if alternating else at


def _iteration_ends(group: list[Ints]) -> Ints:
    most = max(len(ends) for ends in group)
    frequent = [ends for ends in group if len(ends) >= RARE_FRAC * most]
    return min(frequent, key=lambda ends: (len(ends), -int(ends[-1])))


def _accumulated(start: Ints, end: Ints, updates: Ints) -> tuple[Ints, Ints]:
    """Join the batches whose gradients are accumulated for one update of the optimizer, if there are several.

    A batch begins a step if an update came since the previous batch, or if a pass over the data begins.
    """
    before = np.searchsorted(updates, start)
    begins = np.flatnonzero(np.append(True, (np.diff(before) > 0) | (start[1:] != end[:-1])))
    counts = np.diff(np.append(begins, len(start)))
    if not len(updates) or not len(start) or np.median(counts) < 2 or len(begins) < MIN_UPDATES:
        return start, end
    return start[begins], end[begins + counts - 1]


def _training_batches(run: Run, updates: Ints) -> tuple[Ints, Ints]:
    """Return start and end of the batches of all DataLoaders that are trained on, else of that with the most batches.

    A loop may create a dataset for each epoch or fold. Of loaders that are used together, one counts.
    """
    calls = loop_marks(run).of_kind(MarkKind.NEXT)
    indices = [int(index) for index in np.unique(calls["loader"])]
    trained_on = [trained_batches(calls, index, updates) for index in indices if is_trained_on(calls, index, updates)]
    chosen: list[tuple[Ints, Ints]] = []
    for start, end in sorted(trained_on, key=lambda times: len(times[0]), reverse=True):
        if not any(_are_used_together((start, end), other) for other in chosen):
            chosen.append((start, end))
    if not chosen:
        return loader_batches(calls, training_loader_index(loop_marks(run)))
    start, end = (np.concatenate(times) for times in zip(*chosen, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def _are_used_together(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> bool:
    """Whether most batches of one of two loaders start within a batch of the other, as with zip() or nested loops."""
    return _start_within(one[0], *other) or _start_within(other[0], *one)


def _start_within(at: Ints, start: Ints, end: Ints) -> bool:
    before = np.searchsorted(start, at, side="right") - 1
    inside = (before >= 0) & (at < end[np.maximum(before, 0)])
    return bool(2 * inside.sum() > len(at))
