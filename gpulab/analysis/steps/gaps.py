"""The gaps between the work of a device: when, how long, in which step."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.steps.detection import Steps, steps
from gpulab.columns import Column
from gpulab.intervals import Ints, gaps, longer
from gpulab.rows import Rows, Table
from gpulab.run import Run

GAPS = Table(
    "gaps",
    (
        Column("start_ns", "int64", "when the device fell idle, from the start of the run"),
        Column("end_ns", "int64", "when work began again"),
        Column("dur_ns", "int64", "how long it was idle"),
        Column("step", "int32", "the step in which the gap begins, an index into the steps; -1 if in none"),
    ),
)


def gap_table(
    run: Run, device: int | None = None, *, longer_than_ns: int = 0, found: Steps | None = None
) -> Rows | None:
    """Each gap between the first and the last work of a device, in order of time; None where there is no such work.

    Without a device, a gap is time in which none of them worked. `found`: the steps, where they are known already.
    """
    work = device_work(run, device)
    if not len(work):
        return None
    idle = longer(gaps(work.spans(), int(work.start_ns[0]), int(work.end_ns.max())), longer_than_ns)
    dur = idle.end_ns - idle.start_ns
    return GAPS.rows(
        {
            "start_ns": idle.start_ns,
            "end_ns": idle.end_ns,
            "dur_ns": dur,
            "step": step_at(found or steps(run), idle.start_ns),
        }
    )


def step_at(found: Steps, at_ns: Ints) -> Ints:
    """The step that each instant lies in, by its index; -1 where it lies in none."""
    order = np.argsort(found.start_ns, kind="stable")
    begun = np.searchsorted(found.start_ns[order], at_ns, side="right") - 1
    if not len(order):
        return begun
    step = order[np.maximum(begun, 0)]
    return np.where((begun >= 0) & (at_ns < found.end_ns[step]), step, -1)
