"""Host-bound step time: the step time if the device took no time at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger, host_threads
from gpulab.intervals import covered_ns, intersect, merged
from gpulab.run import Run
from gpulab.tables import Kind

HELD_NS = 100_000  # a launch call takes 5-20 us; a longer one waits because the launch queue is full


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Host time of a typical traced step, without waits for a busy device."""

    needed_ns: int
    steady_ns: int  # part of it that recording does not lengthen: data loading, Python outside PyTorch


def pace(run: Run, steps: Steps, ledger: Ledger) -> Pace:
    """Compute the host time of a step; 0 if the CPU is the device."""
    if ledger.device != "gpu":
        return Pace(needed_ns=0, steady_ns=0)
    events = run.event_rows
    kind = events["kind"]
    waits = (kind == Kind.SYNC) | (kind == Kind.COPY_CALL) | ((kind == Kind.LAUNCH) & (events["dur_ns"] > HELD_NS))
    waits &= np.isin(events["thread"], host_threads(run))
    waiting = in_interior(events.where(np.flatnonzero(waits)), steps).spans()
    busy = merged(*(ledger.spans[part.key] for part in ledger.parts if part.busy))
    start, end = steps.interior_bounds_ns
    non_empty = end > start
    start, end = start[non_empty], end[non_empty]
    needed = (end - start) - covered_ns(intersect(waiting, busy), start, end)
    steady = merged(events.where(np.flatnonzero(kind == Kind.LOADER)).spans(), ledger.spans["python"])
    return Pace(
        needed_ns=typical_ns(needed, steps.burst),
        steady_ns=typical_ns(np.minimum(needed, covered_ns(steady, start, end)), steps.burst),
    )
