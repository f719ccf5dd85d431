"""Find the loop of a cell that has no step marks: the operator that comes back like clockwork."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.tables import Kind

LEAST = 10  # fewer repeats may well be the layers of one forward pass
SPANS_FRAC = 0.7  # layers also leave out what comes before and after it
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
    everything = events.where(events["thread"] == main_thread)
    whole_ns = (everything["start_ns"] + everything["dur_ns"]).max() - everything["start_ns"].min()
    codes, starts = outer["name"], outer["start_ns"]
    counts = np.bincount(codes)
    candidates = []
    for code in np.flatnonzero(counts >= LEAST):
        mine = np.sort(starts[codes == code])
        if _steady(mine) and mine[-1] - mine[0] >= SPANS_FRAC * whole_ns:
            candidates.append((len(mine), int(mine[0]), int(code)))
    if not candidates:
        return none
    rarest = min(candidates)[2]
    name = outer.words("name").vocabulary[rarest]
    return name, np.sort(starts[codes == rarest])


def _steady(starts: Ints) -> bool:
    """Whether the intervals between starts are alike."""
    intervals = np.diff(starts)
    low, middle, high = np.percentile(intervals, (25, 50, 75))
    return bool(middle > 0 and high - low <= STEADY * middle)
