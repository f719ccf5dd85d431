"""H2D copies: pageable or pinned, rate, time of the host inside the calls, overlap with kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.copy_table import host_memory
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.host.syncs import copies_in_direction, wait_cost_spans
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Spans, intersect, no_spans, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

LARGE_BYTES = 1 << 20  # a copy this large takes at least 20 us, so the start-up cost no longer hides the rate


@dataclass(frozen=True, kw_only=True)
class CopyStats:
    """Copies of one kind to the busiest device in the interior steps; times and counts per typical step."""

    count: int
    bytes: int | None  # None: unknown
    call_ns: int  # time of the host inside the copy calls
    exposed_ns: int  # copies not overlapped by kernels, and idle time of the device inside the calls
    copying_ns: int  # part of exposed_ns: the copies
    refill_ns: int  # idle time after calls that waited for earlier work, until the queue is refilled
    hidden_frac: float  # share of the copy time overlapped by kernels
    rate_bytes_per_s: float | None  # over all copies with known size
    large_rate_bytes_per_s: float | None  # over copies large enough to show the rate of the link
    spans: Spans  # the exposed and refill time, over all interior steps


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """H2D copies by host memory; None if there are none. Copies from unknown memory are in neither."""

    pageable: CopyStats | None
    pinned: CopyStats | None


def transfers(run: Run, steps: Steps, ledger: Ledger) -> Transfers | None:
    """Compute the H2D copies of interior steps; None if there are none."""
    copies = copies_in_direction(run, "HtoD")
    if ledger.device == "gpu" and len(copies):
        copies = rows_in_interior(copies.select(copies["device"] == main_device(run)), steps)
    if ledger.device != "gpu" or not len(copies):
        return None
    pageable = copies.select(copies.matching(lambda name: host_memory(name) == "pageable"))
    pinned = copies.select(copies.matching(lambda name: host_memory(name) == "pinned"))
    return Transfers(
        pageable=_copies(run, steps, ledger, pageable, waiting=True),
        pinned=_copies(run, steps, ledger, pinned, waiting=False),
    )


def _copies(run: Run, steps: Steps, ledger: Ledger, copies: Rows, *, waiting: bool) -> CopyStats | None:
    if not len(copies):
        return None
    calls = copy_calls(run, copies)
    copy_time = copies.spans()
    copying = intersect(ledger.spans["copies"], copy_time)
    calling = intersect(ledger.spans["copy_call"], calls.spans())
    refill = no_spans()
    if waiting:
        _, refill = wait_cost_spans(ledger, calls["start_ns"], calls["start_ns"] + calls["dur_ns"])
    typical = steps.typical_covered_ns
    exposed = union_of(copying, calling)
    step_count = int(steps.interior.sum())
    return CopyStats(
        count=max(1, round(len(copies) / step_count)),
        bytes=_known_sum(copies, step_count),
        call_ns=typical(calls.spans()),
        exposed_ns=typical(exposed),
        copying_ns=typical(copying),
        refill_ns=typical(union_of(exposed, refill)) - typical(exposed),
        hidden_frac=1 - min(1.0, copying.total_ns / max(1, copy_time.total_ns)),
        rate_bytes_per_s=copy_rate(copies),
        large_rate_bytes_per_s=copy_rate(copies.select(copies["bytes"] >= LARGE_BYTES)),
        spans=union_of(exposed, refill),
    )


def copy_calls(run: Run, copies: Rows) -> Rows:
    """Return the calls that started these copies, by correlation id."""
    calls = run.event_rows.of_kind(EventKind.COPY_CALL)
    ids = copies["correlation"][copies["correlation"] >= 0]
    return calls.select(np.isin(calls["correlation"], ids))


def _known_sum(copies: Rows, step_count: int) -> int | None:
    known_bytes = copies["bytes"][copies["bytes"] >= 0]
    return int(known_bytes.sum()) // step_count if len(known_bytes) else None


def copy_rate(copies: Rows) -> float | None:
    """Return bytes per second over the copies with known size and duration; None if there are none."""
    known_copies = copies.select((copies["bytes"] > 0) & (copies["dur_ns"] > 0))
    return float(known_copies["bytes"].sum() / known_copies["dur_ns"].sum() * 1e9) if len(known_copies) else None
