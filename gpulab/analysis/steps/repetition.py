"""Find the loop of a cell without step marks, by an operator that repeats regularly."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.tables import EventKind

MIN_REPEATS = 10  # fewer repeats may be the layers of one forward pass
MIN_COVERED_FRAC = 0.7  # of the recorded time; repeated layers of one pass cover less
MAX_IQR_FRAC = 0.5  # the interquartile range of the intervals is at most this share of their median
MIN_EQUAL_FRAC = 0.8  # of the intervals have the same number of operators: other programs do not change that


def repeated_starts(events: Rows, main_thread: int) -> tuple[str, Ints]:
    """Return name and start times of the outermost operator that marks the loop; ("", empty) if there is none.

    An iteration may call an operator several times. The rarest regular operator is called once per iteration; of
    several, the earliest is the first in the iteration.
    """
    ops = events.select(events.is_kind(EventKind.OP) & (events["thread"] == main_thread))
    no_loop = "", np.empty(0, np.int64)
    if not len(ops):
        return no_loop
    outer_ops = ops.select(outermost(ops))
    thread_events = events.select(events["thread"] == main_thread)
    recorded_ns = (thread_events["start_ns"] + thread_events["dur_ns"]).max() - thread_events["start_ns"].min()
    codes, starts = outer_ops["name"], outer_ops["start_ns"]
    counts = np.bincount(codes)
    candidates = []
    in_order = codes[np.argsort(starts, kind="stable")]
    for code in np.flatnonzero(counts >= MIN_REPEATS):
        times = np.sort(starts[codes == code])
        is_regular = _steady(times) or _equally_spaced(np.flatnonzero(in_order == code))
        if is_regular and times[-1] - times[0] >= MIN_COVERED_FRAC * recorded_ns:
            candidates.append((len(times), int(times[0]), int(code)))
    if not candidates:
        return no_loop
    rarest_code = min(candidates)[2]
    name = outer_ops.text("name").vocabulary[rarest_code]
    return name, np.sort(starts[codes == rarest_code])


def _steady(starts: Ints) -> bool:
    """Whether the intervals between the starts are about equal."""
    intervals = np.diff(starts)
    low, middle, high = np.percentile(intervals, (25, 50, 75))
    return bool(middle > 0 and high - low <= MAX_IQR_FRAC * middle)


def _equally_spaced(positions: Ints) -> bool:
    """Whether most positions in a sequence have the same distance."""
    distances = np.diff(positions)
    return bool((distances == np.median(distances)).mean() >= MIN_EQUAL_FRAC)
