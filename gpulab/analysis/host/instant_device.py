"""Host-bound step time: the step time if the device took no time at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger, launching_threads
from gpulab.intervals import covered_ns, intersect, union_of
from gpulab.run import Run
from gpulab.tables import EventKind

QUEUE_FULL_NS = 100_000  # a launch call takes 5-20 us; a longer one waits because the launch queue is full


@dataclass(frozen=True, kw_only=True)
class HostStepTime:
    """Host time of a typical traced step, without waits for a busy device."""

    needed_ns: int
    uninflated_ns: int  # part of it that recording does not lengthen: data loading, Python outside PyTorch


def host_step_time(run: Run, steps: Steps, ledger: Ledger) -> HostStepTime:
    """Compute the host time of a step; 0 if the CPU is the device."""
    if ledger.device != "gpu":
        return HostStepTime(needed_ns=0, uninflated_ns=0)
    events = run.event_rows
    kind = events["kind"]
    waits = (
        (kind == EventKind.SYNC.value)
        | (kind == EventKind.COPY_CALL.value)
        | ((kind == EventKind.LAUNCH.value) & (events["dur_ns"] > QUEUE_FULL_NS))
    )
    waits &= np.isin(events["thread"], launching_threads(run))
    waiting = rows_in_interior(events.select(np.flatnonzero(waits)), steps).spans()
    busy = union_of(*(ledger.spans[part.key] for part in ledger.parts if part.busy))
    start, end = steps.interior_bounds_ns
    non_empty = end > start
    start, end = start[non_empty], end[non_empty]
    needed = (end - start) - covered_ns(intersect(waiting, busy), start, end)
    steady = union_of(events.select(np.flatnonzero(kind == EventKind.LOADER.value)).spans(), ledger.spans["python"])
    return HostStepTime(
        needed_ns=typical_ns(needed, steps.burst),
        uninflated_ns=typical_ns(np.minimum(needed, covered_ns(steady, start, end)), steps.burst),
    )
