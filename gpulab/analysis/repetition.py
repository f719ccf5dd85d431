"""Find the loop of a cell that has no step marks: the operator that comes back like clockwork."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.nesting import outermost
from gpulab.intervals import Ints
from gpulab.tables import Kind, Rows

LEAST = 4  # fewer repeats are no loop
STEADY = 0.5  # the middle half of the intervals stays within this share of their median


def repeated_starts(events: Rows, main_thread: int) -> tuple[str, Ints]:
    """The name and the start times of the outermost operator that marks the loop; ("", empty) where none does.

    An iteration may call an operator several times, so the rarest steady one is taken: it is called once. Among
    equally rare ones the earliest is the first of its iteration.
    """
    ops = events.where((events["kind"] == Kind.OP) & (events["thread"] == main_thread))
    none = "", np.empty(0, np.int64)
    if not len(ops):
        return none
    outer = ops.where(outermost(ops))
    codes, starts = outer["name"], outer["start_ns"]
    counts = np.bincount(codes)
    candidates = []
    for code in np.flatnonzero(counts >= LEAST):
        mine = np.sort(starts[codes == code])
        if _steady(mine) and _covers(mine, starts):
            candidates.append((len(mine), int(mine[0]), int(code)))
    if not candidates:
        return none
    _, _, code = min(candidates)
    name = outer.words("name").vocabulary[code]
    return name, np.sort(starts[codes == code])


def _steady(starts: Ints) -> bool:
    """Whether the intervals between starts are alike."""
    intervals = np.diff(starts)
    low, middle, high = np.percentile(intervals, (25, 50, 75))
    return bool(middle > 0 and high - low <= STEADY * middle)


def _covers(mine: Ints, everyone: Ints) -> bool:
    """Whether the repetition spans most of the recorded time, rather than one corner of it."""
    return bool((mine[-1] - mine[0]) >= 0.5 * (everyone.max() - everyone.min()))
