"""Copies from the host to the device: from what memory, how fast, how long they hold the host, what hides them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.table import host_memory
from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.host.syncs import copied, waiting_cost
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Spans, intersect, merged, nothing
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

LARGE_BYTES = 1 << 20  # a copy this large takes 20 us and more: what starting it costs no longer hides its rate


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Copies of one kind to the busiest device in the interior steps; times and counts per typical step."""

    count: int
    bytes: int | None  # None where the trace does not tell
    call_ns: int  # the host inside the calls that started them
    exposed_ns: int  # copies with no kernel beside them, and idle time inside the calls
    copying_ns: int  # of that, the copies
    refill_ns: int  # idle after calls that had to wait for earlier work, until the queue is filled again
    hidden_frac: float  # share of the copies that ran beside kernels
    rate_bytes_per_s: float | None  # of all that tell
    large_rate_bytes_per_s: float | None  # of those large enough to show what the link can do
    spans: Spans  # the exposed time and what follows it, over all interior steps


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """By the memory they come from; None: there are none of the kind. What does not tell its memory is neither."""

    pageable: Copies | None
    pinned: Copies | None


def transfers(run: Run, steps: Steps, ledger: Ledger) -> Transfers | None:
    """What was copied to the device in interior steps; None where nothing was."""
    copies = copied(run, "HtoD")
    if ledger.device == "gpu" and len(copies):
        copies = in_interior(copies.where(copies["device"] == main_device(run)), steps)
    if ledger.device != "gpu" or not len(copies):
        return None
    pageable = copies.where(copies.matching(lambda name: host_memory(name) == "pageable"))
    pinned = copies.where(copies.matching(lambda name: host_memory(name) == "pinned"))
    return Transfers(
        pageable=_copies(run, steps, ledger, pageable, waiting=True),
        pinned=_copies(run, steps, ledger, pinned, waiting=False),
    )


def _copies(run: Run, steps: Steps, ledger: Ledger, copies: Rows, *, waiting: bool) -> Copies | None:
    if not len(copies):
        return None
    calls = calls_of(run, copies)
    moving = copies.spans()
    copying = intersect(ledger.spans["copies"], moving)
    calling = intersect(ledger.spans["copy_call"], calls.spans())
    after = nothing()
    if waiting:
        _, after = waiting_cost(ledger, calls["start_ns"], calls["start_ns"] + calls["dur_ns"])
    typical = steps.typical_covered_ns
    exposed = merged(copying, calling)
    many = int(steps.interior.sum())
    return Copies(
        count=max(1, round(len(copies) / many)),
        bytes=_known_sum(copies, many),
        call_ns=typical(calls.spans()),
        exposed_ns=typical(exposed),
        copying_ns=typical(copying),
        refill_ns=typical(merged(exposed, after)) - typical(exposed),
        hidden_frac=1 - min(1.0, copying.total_ns / max(1, moving.total_ns)),
        rate_bytes_per_s=rate(copies),
        large_rate_bytes_per_s=rate(copies.where(copies["bytes"] >= LARGE_BYTES)),
        spans=merged(exposed, after),
    )


def calls_of(run: Run, copies: Rows) -> Rows:
    """The calls that started these copies, by correlation."""
    calls = run.event_rows.of_kind(Kind.COPY_CALL)
    wanted = copies["correlation"][copies["correlation"] >= 0]
    return calls.where(np.isin(calls["correlation"], wanted))


def _known_sum(copies: Rows, many: int) -> int | None:
    known = copies["bytes"][copies["bytes"] >= 0]
    return int(known.sum()) // many if len(known) else None


def rate(copies: Rows) -> float | None:
    """Bytes over time, of the copies that tell both; None if none does."""
    known = copies.where((copies["bytes"] > 0) & (copies["dur_ns"] > 0))
    return float(known["bytes"].sum() / known["dur_ns"].sum() * 1e9) if len(known) else None
