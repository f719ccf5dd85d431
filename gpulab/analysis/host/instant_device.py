"""Host-bound step time: the step time if the device took no time at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger, launching_threads
from gpulab.intervals import covered_ns, intersect, union_of
from gpulab.run import Run
from gpulab.tables import EventKind

QUEUE_FULL_NS = 100_000  # a launch call takes 5-20 us; a longer one waits because the launch queue is full
# Where the host ran ahead, a launch call this many times as long as a quick one (the 10th percentile) waits for a place
# in the queue, which is free as soon as a kernel ends.
_WAITING_LAUNCH_TIMES = 3.0


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
    waiting = rows_in_interior(events.select(np.flatnonzero(_waits(run, steps))), steps.host_steps).spans()
    if steps.host is None:
        busy = union_of(*(ledger.spans[part.key] for part in ledger.parts if part.busy))
        waiting = intersect(waiting, busy)
    start, end = steps.host_steps.interior_bounds_ns
    non_empty = end > start
    start, end = start[non_empty], end[non_empty]
    needed = (end - start) - covered_ns(waiting, start, end)
    loading = np.flatnonzero(events["kind"] == EventKind.LOADER.value)
    steady = union_of(events.select(loading).spans(), ledger.spans["python"])
    return HostStepTime(
        needed_ns=typical_ns(needed, steps.burst),
        uninflated_ns=typical_ns(np.minimum(needed, covered_ns(steady, start, end)), steps.burst),
    )


def _waits(run: Run, steps: Steps) -> Mask:
    """Return a mask of the calls that wait for the device: syncs, copies, launches into a full queue."""
    events = run.event_rows
    kind, dur_ns = events["kind"], events["dur_ns"]
    is_launch = kind == EventKind.LAUNCH.value
    longest_ns = QUEUE_FULL_NS
    if steps.host is not None and is_launch.any():
        longest_ns = min(longest_ns, round(_WAITING_LAUNCH_TIMES * float(np.quantile(dur_ns[is_launch], 0.1))))
    waits = (kind == EventKind.SYNC.value) | (kind == EventKind.COPY_CALL.value) | (is_launch & (dur_ns > longest_ns))
    return np.asarray(waits & np.isin(events["thread"], launching_threads(run)), bool)
