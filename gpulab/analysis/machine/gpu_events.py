"""What happened to the GPUs during a run: throttling, other processes, lost readings; and whether steps were longer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints, Spans, clip, covered_ns, union
from gpulab.rows import Rows
from gpulab.run import Run

MAX_MISSED_PERIODS = 3  # a reading counts for so many sampling periods if the next one is missing
_OTHERS_BYTES = 2**28  # of device memory of other processes: a display server holds less
_LOST_PERIODS = 20  # readings that stop so long before the end of the run
_MIN_STEPS = 5  # inside and outside, for a comparison


@dataclass(frozen=True, kw_only=True, eq=False)
class GpuEvent:
    """Something that happened to a GPU, once or several times: `spans` are its times, from the start of the run."""

    device: int
    kind: str  # "throttling", "other process", "memory error" or "lost"
    label: str
    spans: Spans
    during_ns: int | None = None  # median of the steps that lie mostly within; None with too few
    outside_ns: int | None = None


def gpu_events(run: Run, steps: Steps) -> tuple[GpuEvent, ...]:
    """Return the events of all GPUs, in the order in which they began."""
    events = []
    for device in np.unique(run.gpu_rows["device"]).tolist():
        rows = run.gpu_rows.select(run.gpu_rows["device"] == device)
        rows = rows.select(np.argsort(rows["at_ns"], kind="stable"))
        happened = (*_throttling(rows), *_others(rows), *_memory_errors(rows), *_lost(rows, run.span_ns))
        for kind, label, spans in happened:
            if len(spans.start_ns):
                during_ns, outside_ns = _step_times_ns(steps, spans)
                events.append(
                    GpuEvent(
                        device=device, kind=kind, label=label, spans=spans, during_ns=during_ns, outside_ns=outside_ns
                    )
                )
    return tuple(sorted(events, key=lambda event: int(event.spans.start_ns[0])))


def reading_ends_ns(at_ns: Ints) -> Ints:
    """Return until when each reading counts: until the next one, or for three periods if that is missing."""
    period_ns = int(np.median(np.diff(at_ns))) if len(at_ns) > 1 else 0
    ends: Ints = np.minimum(
        np.append(at_ns[1:], at_ns[-1:] + period_ns), at_ns + MAX_MISSED_PERIODS * max(1, period_ns)
    )
    return ends


def _throttling(rows: Rows) -> Iterator[tuple[str, str, Spans]]:
    bits = np.where(np.isnan(rows["throttle_bits"]), 0, rows["throttle_bits"]).astype(np.int64)
    for bit, label in rows.table.column("throttle_bits").flags:
        yield "throttling", label, _spans(rows, (bits & bit) != 0)


def _others(rows: Rows) -> Iterator[tuple[str, str, Spans]]:
    with np.errstate(invalid="ignore"):
        yield "other process", "another process holds memory", _spans(rows, rows["others_memory_bytes"] > _OTHERS_BYTES)


def _memory_errors(rows: Rows) -> Iterator[tuple[str, str, Spans]]:
    """Readings whose counter of memory errors is higher than the one before."""
    for column, label in (
        ("ecc_uncorrected", "uncorrected memory errors"),
        ("ecc_corrected", "corrected memory errors"),
    ):
        with np.errstate(invalid="ignore"):
            yield "memory error", label, _spans(rows, np.diff(rows[column], prepend=np.nan) > 0)


def _lost(rows: Rows, span_ns: int) -> Iterator[tuple[str, str, Spans]]:
    """Readings that stop before the end: the driver lost the GPU."""
    at_ns = rows["at_ns"]
    if len(at_ns) < _LOST_PERIODS:
        return
    last_ns = int(at_ns[-1])
    if span_ns - last_ns > _LOST_PERIODS * int(np.median(np.diff(at_ns))):
        yield "lost", "no more readings", union([last_ns], [span_ns])


def _spans(rows: Rows, mask: np.ndarray) -> Spans:
    at_ns = rows["at_ns"]
    return union(at_ns[mask], reading_ends_ns(at_ns)[mask]) if mask.any() else union([], [])


def _step_times_ns(steps: Steps, spans: Spans) -> tuple[int | None, int | None]:
    """Return the median of the steps within the spans and of the others; None if one of them has too few."""
    chosen = np.flatnonzero(steps.unprofiled) if steps.unprofiled.any() else np.flatnonzero(steps.interior)
    if not len(chosen):
        return None, None
    start_ns, end_ns = steps.start_ns[chosen], steps.end_ns[chosen]
    in_loop = clip(spans, int(start_ns.min()), int(end_ns.max()))
    inside = covered_ns(in_loop, start_ns, end_ns) > (end_ns - start_ns) / 2
    if min(inside.sum(), (~inside).sum()) < _MIN_STEPS:
        return None, None
    dur_ns = steps.dur_ns[chosen]
    return int(np.median(dur_ns[inside])), int(np.median(dur_ns[~inside]))
