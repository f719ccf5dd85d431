"""Idle gaps between the work of a device: when, how long, in which step."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.columns import Column
from gpulab.intervals import Ints, gaps, spans_longer_than
from gpulab.rows import Rows, Table
from gpulab.run import Run

GAPS = Table(
    "gaps",
    (
        Column("start_ns", "int64", "when the device became idle, from the start of the run"),
        Column("end_ns", "int64", "when it worked again"),
        Column("dur_ns", "int64", "duration of the gap"),
        Column("step", "int32", "index of the step in which the gap starts; -1 if in none"),
    ),
)


def gap_table(
    run: Run, device: int | None = None, *, longer_than_ns: int = 0, steps: Steps | None = None
) -> Rows | None:
    """Return each idle gap between the first and the last work of a device, in order of time; None without such work.

    Without `device`, a gap is time in which no device worked. `max_batch`: the steps of the run, if already known.
    """
    work = device_work(run, device)
    if not len(work):
        return None
    idle = spans_longer_than(gaps(work.spans(), int(work.start_ns[0]), int(work.end_ns.max())), longer_than_ns)
    dur = idle.end_ns - idle.start_ns
    return GAPS.rows(
        {
            "start_ns": idle.start_ns,
            "end_ns": idle.end_ns,
            "dur_ns": dur,
            "step": step_index_at(steps or find_steps(run), idle.start_ns),
        }
    )


def step_index_at(steps: Steps, at_ns: Ints) -> Ints:
    """Return, for each time, the index of the step that contains it; -1 if no step does."""
    order = np.argsort(steps.start_ns, kind="stable")
    position = np.searchsorted(steps.start_ns[order], at_ns, side="right") - 1
    if not len(order):
        return position
    step = order[np.maximum(position, 0)]
    return np.where((position >= 0) & (at_ns < steps.end_ns[step]), step, -1)
