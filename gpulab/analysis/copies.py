"""Copies between host and device: how much, from what kind of memory, and how long the host was held up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.launches import in_interior
from gpulab.analysis.steps import Steps
from gpulab.intervals import Spans, union
from gpulab.run import Run
from gpulab.tables import Kind, Rows


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Host-to-device copies of the interior steps, per step."""

    count: int
    pageable: int  # how many of them came from pageable memory
    bytes: int | None  # None where the trace does not tell
    device_ns: int  # the copies themselves, on the device
    call_ns: int  # the host inside the calls that started the pageable ones
    rate_bytes_per_s: float | None  # of the pageable ones
    spans: Spans  # when, over all interior steps


def host_to_device(run: Run, steps: Steps) -> Copies | None:
    """What was copied to the device in interior steps; None where nothing was."""
    copies = in_interior(run.event_rows.of_kind(Kind.MEMCPY), steps)
    names = copies.words("name")
    copies = copies.where(names.matching(_to_device(word) for word in names.vocabulary))
    if not len(copies):
        return None
    names = copies.words("name")
    pageable = copies.where(names.matching("Pageable" in word for word in names.vocabulary))
    many = int(steps.interior.sum())
    return Copies(
        count=round(len(copies) / many),
        pageable=round(len(pageable) / many),
        bytes=_known_sum(copies, many),
        device_ns=int(copies["dur_ns"].sum()) // many,
        call_ns=int(calls_of(run, pageable)["dur_ns"].sum()) // many,
        rate_bytes_per_s=_rate(pageable),
        spans=union(copies["start_ns"], copies["start_ns"] + copies["dur_ns"]),
    )


def calls_of(run: Run, work: Rows) -> Rows:
    """The runtime calls that started this device work, by correlation."""
    calls = run.event_rows.of_kind(Kind.COPY_CALL, Kind.LAUNCH, Kind.RUNTIME)
    wanted = work["correlation"][work["correlation"] >= 0]
    return calls.where(np.isin(calls["correlation"], wanted))


def _to_device(name: str) -> bool:
    return "HtoD" in name or "HostToDevice" in name


def _known_sum(copies: Rows, many: int) -> int | None:
    known = copies["bytes"][copies["bytes"] >= 0]
    return int(known.sum()) // many if len(known) else None


def _rate(copies: Rows) -> float | None:
    known = copies.where((copies["bytes"] > 0) & (copies["dur_ns"] > 0))
    return float(known["bytes"].sum() / known["dur_ns"].sum() * 1e9) if len(known) else None
