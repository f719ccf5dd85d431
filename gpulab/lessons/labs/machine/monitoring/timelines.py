"""Questions about the timeline of a run: which part of a time do some of its events cover?

Events are the rows of `run.events`, with `kind`, `name`, `start_ns` and `dur_ns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpulab.analysis.steps.detection import find_steps
from gpulab.errors import RunError
from gpulab.files.datasets import dataset
from gpulab.intervals import Spans, clip, intersect, subtract, union
from gpulab.run import Run

if TYPE_CHECKING:
    import pandas as pd

# Recordings of an NVIDIA H100, and the cause that was planted in each.
PLANTED_CAUSES = {
    "h100_01": "copies",
    "h100_02": "sync",
    "h100_11": "data",
    "h100_13": "small kernels",
    "h100_14": "busy",
}


@dataclass(frozen=True, eq=False)
class StepTimeline:
    """The events of the complete steps of a run: of the GPU if there is one, of the host in any case."""

    events: pd.DataFrame
    start_ns: int
    end_ns: int
    steps: int

    @property
    def busy_frac(self) -> float:
        """Fraction of the time with a kernel on the GPU, 0-1; for a run on the CPU, with an operator."""
        return self._busy_spans().total_ns / (self.end_ns - self.start_ns)

    def gap_frac(self, events: pd.DataFrame) -> float:
        """Fraction of the idle time that these events cover, 0-1; they may overlap. 0 if nothing is idle."""
        idle = subtract(_all_of(self.start_ns, self.end_ns), self._busy_spans())
        return intersect(self._spans(events), idle).total_ns / idle.total_ns if idle.total_ns else 0.0

    def median_kernel_us(self) -> float:
        """Median length of a kernel in microseconds; NaN without one."""
        kernels = self.events[self.events["kind"] == "kernel"]
        return float(kernels["dur_ns"].median()) / 1e3 if len(kernels) else float("nan")

    def _busy_spans(self) -> Spans:
        kinds = self.events["kind"]
        kernels = self.events[kinds == "kernel"]
        return self._spans(kernels if len(kernels) else self.events[kinds == "op"])

    def _spans(self, events: pd.DataFrame) -> Spans:
        start = events["start_ns"].to_numpy(np.int64)
        return clip(union(start, start + events["dur_ns"].to_numpy(np.int64)), self.start_ns, self.end_ns)


def recorded_timeline(run: Run | str) -> StepTimeline:
    """Return the timeline of the complete steps of a run, or of a dataset by its name.

    Raises RunError if no step was recorded completely.
    """
    recorded = dataset(run).load() if isinstance(run, str) else run
    run_steps = find_steps(recorded)
    inside = run_steps.interior
    if not inside.any():
        raise RunError(
            f"The run {recorded.name} has no timeline of steps.",
            why="no step was recorded from its beginning to its end",
            fix="record at least three steps",
        )
    start_ns, end_ns = int(run_steps.start_ns[inside].min()), int(run_steps.end_ns[inside].max())
    events = recorded.events
    overlaps = (events["start_ns"] < end_ns) & (events["start_ns"] + events["dur_ns"] > start_ns)
    return StepTimeline(events[overlaps], start_ns, end_ns, int(inside.sum()))


def _all_of(start_ns: int, end_ns: int) -> Spans:
    return union(np.array([start_ns], np.int64), np.array([end_ns], np.int64))
