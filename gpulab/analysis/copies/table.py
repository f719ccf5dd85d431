"""Copies and fills by kind: how many, how much, from what kind of memory, how fast."""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.groups import grouped
from gpulab.analysis.kernels.table import most_first, named
from gpulab.columns import Column
from gpulab.rows import Rows, Table, Words
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
