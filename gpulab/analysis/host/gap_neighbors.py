"""Name the operators before and after the time that the main thread spent outside PyTorch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.intervals import Spans
from gpulab.run import Run
from gpulab.tables import EventKind


@dataclass(frozen=True, kw_only=True)
class GapNeighbors:
    """The pair of operators with the most time between them, and their share of all that time."""

    before: str
    after: str
    frac: float  # 0-1


def gap_neighbors(run: Run, spans: Spans) -> GapNeighbors | None:
    """Find between which two operators of the main thread most of these spans lie; None if between none."""
    events = run.event_rows
    ops = events.select(np.flatnonzero(events.is_kind(EventKind.OP) & (events["thread"] == run.main_thread)))
    ops = ops.select(np.flatnonzero(outermost(ops)))
    ops = ops.select(np.argsort(ops["start_ns"], kind="stable"))
    if not len(ops) or not spans.total_ns:
        return None
    after = np.searchsorted(ops["start_ns"], spans.end_ns, side="left")
    inside = (after > 0) & (after < len(ops))
    names = ops.text("name").to_list()
    time_ns: Counter[tuple[str, str]] = Counter()
    lengths_ns = (spans.end_ns - spans.start_ns)[inside].tolist()
    for index, length_ns in zip(after[inside].tolist(), lengths_ns, strict=True):
        time_ns[names[index - 1] or "", names[index] or ""] += length_ns
    if not time_ns:
        return None
    (first, second), most_ns = time_ns.most_common(1)[0]
    return GapNeighbors(before=first, after=second, frac=most_ns / spans.total_ns)
