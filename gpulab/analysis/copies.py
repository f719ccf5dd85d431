"""Copies and fills: how much, from what kind of memory, how fast, and how long the host was held up."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.groups import grouped
from gpulab.analysis.kernels import most_first, named
from gpulab.analysis.launches import in_interior
from gpulab.analysis.steps import Steps
from gpulab.analysis.work import device_work
from gpulab.intervals import Spans
from gpulab.rows import Column, Rows, Table, Words
from gpulab.run import Run
from gpulab.tables import Kind

COPIES = Table(
    "copies",
    (
        Column("name", "words", "the copy or fill, as the trace names it"),
        Column("direction", "words", "HtoD, DtoH, DtoD, PtoP (between GPUs), HtoH, or fill; absent if not told"),
        Column("host_memory", "words", "memory on the host's side: pageable, pinned or managed; absent if not told"),
        Column("count", "int64", "how many there were"),
        Column("sized", "int64", "how many of them tell their size"),
        Column("bytes", "int64", "what those moved or set together; -1 if none tells"),
        Column("total_ns", "int64", "how long all took together, beside one another or not"),
        Column("median_ns", "int64", "the median one, rounded down"),
        Column("rate_bytes_per_s", "float64", "bytes over time, of those that tell both; NaN if none does"),
    ),
)

_CUDA = re.compile(r"\b([HDAP])to([HDAP])\b")  # "Memcpy HtoD (Pageable -> Device)"
_ROCM = re.compile(r"(host|device|peer)_?to_?(host|device|peer)", re.IGNORECASE)  # "CopyHostToDevice"
_HOST_MEMORY = re.compile(r"Pageable|Pinned|Managed")


def copy_table(run: Run, device: int | None = None) -> Rows:
    """One row for each kind of copy or fill, by its name, most time first."""
    work = device_work(run, device).of_kind(Kind.MEMCPY, Kind.MEMSET)
    dur, size = work["dur_ns"], work["bytes"]
    groups = grouped(work["name"] + 1, dur)  # a copy without a name has the code -1
    words = named(work.events.words("name"), groups.code - 1)
    fills = work.events["kind"][work.event[groups.first]] == Kind.MEMSET
    ways = ["fill" if fill else direction(word) for word, fill in zip(words.to_list(), fills, strict=True)]
    told, timed = size >= 0, (size > 0) & (dur > 0)
    sized, moved, during = groups.sums(told), groups.sums(size * timed), groups.sums(dur * timed)
    columns = {
        "name": words,
        "direction": Words.of(ways),
        "host_memory": Words.of(map(host_memory, words.to_list())),
        "count": groups.count,
        "sized": sized,
        "bytes": np.where(sized > 0, groups.sums(size * told), -1),
        "total_ns": groups.total,
        "median_ns": groups.median,
        "rate_bytes_per_s": np.divide(moved * 1e9, during, out=np.full(len(words), np.nan), where=during > 0),
    }
    return most_first(COPIES.rows(columns))


def direction(name: str | None) -> str | None:
    """From where to where a copy of this name goes: "HtoD", "DtoH", "DtoD", "PtoP"; None where it does not tell."""
    found = _CUDA.search(name or "") or _ROCM.search(name or "")
    return f"{found[1][0].upper()}to{found[2][0].upper()}" if found else None


def host_memory(name: str | None) -> str | None:
    """What kind of host memory a copy of this name reads or writes; None where there is none or it does not tell."""
    found = _HOST_MEMORY.search(name or "")
    return found[0].lower() if found else None


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
    copies = copies.where(names.matching(direction(word) == "HtoD" for word in names.vocabulary))
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
        spans=copies.spans(),
    )


def calls_of(run: Run, work: Rows) -> Rows:
    """The runtime calls that started this device work, by correlation."""
    calls = run.event_rows.of_kind(Kind.COPY_CALL, Kind.LAUNCH, Kind.RUNTIME)
    wanted = work["correlation"][work["correlation"] >= 0]
    return calls.where(np.isin(calls["correlation"], wanted))


def _known_sum(copies: Rows, many: int) -> int | None:
    known = copies["bytes"][copies["bytes"] >= 0]
    return int(known.sum()) // many if len(known) else None


def _rate(copies: Rows) -> float | None:
    known = copies.where((copies["bytes"] > 0) & (copies["dur_ns"] > 0))
    return float(known["bytes"].sum() / known["dur_ns"].sum() * 1e9) if len(known) else None
