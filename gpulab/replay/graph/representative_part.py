"""A part of a long run that stands for all of it: replaying some typical steps gives the same answer, and sooner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.analysis.steps.detection import Mask, Steps, burst_means
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.intervals import Ints
from gpulab.replay.selected_events import with_events
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS

MAX_EVENTS = 20_000  # in the steps of the part; a replay takes some milliseconds then
_MIN_STEPS = 5  # complete ones: with fewer, their median is uncertain
_MIN_SAVED_FRAC = 0.5  # of the events: a part that leaves out less saves too little
_MAX_CANDIDATES = 400


def representative_part(run: Run, steps: Steps, ledger: Ledger) -> tuple[Run, Steps, Ledger]:
    """Return some adjacent typical steps of a run, with one step more on each side; the run itself if it is short.

    Of all parts of that length, it is the one whose median step is most like that of the run, part by part of the
    ledger. Marks, sensors, and the steps without the profiler stay those of the whole run.
    """
    interior = np.flatnonzero(steps.interior)
    inside = steps.host_steps.interior_mask(run.event_rows["start_ns"])
    per_step = int(inside.sum()) / max(1, len(interior))
    count = max(_MIN_STEPS * steps.burst, int(MAX_EVENTS / max(1.0, per_step)) // steps.burst * steps.burst)
    if len(ledger.step_ns) != len(interior) or count > (1 - _MIN_SAVED_FRAC) * len(interior):
        return run, steps, ledger
    first = _most_typical(ledger, interior, count)
    if first is None:
        return run, steps, ledger
    chosen = interior[first : first + count]
    on_host = chosen if steps.host is None else _launching_steps(run, steps, chosen)
    start_ns, end_ns = steps.host_steps.start_ns, steps.host_steps.end_ns
    low, high = max(int(on_host[0]) - 1, 0), min(int(on_host[-1]) + 1, len(start_ns) - 1)
    part = with_events(run, _events_of(run, int(start_ns[low]), int(end_ns[high])))
    host = None if steps.host is None else replace(steps.host, interior=_only(steps.host.interior, on_host))
    part_steps = replace(steps, interior=_only(steps.interior, chosen), host=host)
    part_ledger = build_ledger(part, part_steps)
    return (part, part_steps, part_ledger) if part_ledger is not None else (run, steps, ledger)


def _only(interior: Mask, chosen: Ints) -> Mask:
    """Return the mask with these steps only."""
    mask: Mask = interior & np.isin(np.arange(len(interior)), chosen)
    return mask


def _launching_steps(run: Run, steps: Steps, chosen: Ints) -> Ints:
    """Return the steps of the Python loop that launch the work of these steps of the GPU, which come later."""
    events, host = run.event_rows, steps.host_steps
    start_ns, end_ns = steps.start_ns[chosen[0]], steps.end_ns[chosen[-1]]
    on_device = events.is_kind(*DEVICE_KINDS)
    starts_inside = (events["start_ns"] >= start_ns) & (events["start_ns"] < end_ns)
    launched = np.unique(events["correlation"][on_device & starts_inside & (events["correlation"] >= 0)])
    launches_ns = events["start_ns"][~on_device & np.isin(events["correlation"], launched)]
    limits = (launches_ns.min(), launches_ns.max()) if len(launches_ns) else (start_ns, end_ns - 1)
    first, last = (np.searchsorted(host.start_ns, limits, side="right") - 1).tolist()
    return np.arange(max(0, first), last + 1, dtype=np.int64)


def _most_typical(ledger: Ledger, interior: Ints, count: int) -> int | None:
    """Return the position of the first of `count` adjacent steps that are most like all steps; None if none are."""
    positions = np.arange(len(interior) - count + 1)
    positions = positions[interior[positions + count - 1] - interior[positions] == count - 1]
    positions = positions[:: max(1, len(positions) // _MAX_CANDIDATES)]
    if not len(positions):
        return None
    columns = np.stack([ledger.step_ns, *ledger.part_ns.values()])
    burst = ledger.burst
    usual = [float(np.median(burst_means(column, burst))) for column in columns]

    def difference(position: int) -> float:
        medians = [float(np.median(burst_means(column[position : position + count], burst))) for column in columns]
        # The step counts as much as all of its parts.
        weights = [len(columns) - 1, *[1] * (len(columns) - 1)]
        return sum(weight * abs(a - b) for weight, a, b in zip(weights, medians, usual, strict=True))

    return int(min(positions.tolist(), key=difference))


def _events_of(run: Run, start_ns: int, end_ns: int) -> Mask:
    """Return a mask of the host events that start in this time, and of the device work that they launch."""
    events = run.event_rows
    on_device = events.is_kind(*DEVICE_KINDS)
    starts_inside = (events["start_ns"] >= start_ns) & (events["start_ns"] < end_ns)
    correlation = events["correlation"]
    launches = np.unique(correlation[~on_device & starts_inside & (correlation >= 0)])
    all_launches = np.unique(correlation[~on_device & (correlation >= 0)])
    is_launched = on_device & np.isin(correlation, all_launches)
    mask: Mask = np.where(is_launched, np.isin(correlation, launches), starts_inside)
    return mask
