"""When a run was recorded with events, and when the profiler paused it."""

from __future__ import annotations

import numpy as np

from gpulab.intervals import Spans, union
from gpulab.run import Run


def windows_of(run: Run) -> Spans:
    """Return when the profiler recorded events."""
    return _union_of_pairs(run.recording.windows_ns)


def pauses_of(run: Run) -> Spans:
    """Return when the profiler paused the program."""
    return _union_of_pairs(run.recording.pauses_ns)


def _union_of_pairs(pairs_ns: tuple[tuple[int, int], ...]) -> Spans:
    return union(*np.array(pairs_ns, np.int64).reshape(-1, 2).T)
