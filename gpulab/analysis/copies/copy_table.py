"""Table of copies and memsets by kind: count, bytes, host memory, rate."""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.group_statistics import group_by_code
from gpulab.analysis.kernels.kernel_table import sort_by_total, text_from_codes
from gpulab.columns import Column
from gpulab.rows import Rows, Table, TextColumn
from gpulab.run import Run
from gpulab.tables import EventKind

COPIES = Table(
    "copies",
    (
        Column("name", "words", "the copy or memset, as the trace names it"),
        Column("direction", "words", "HtoD, DtoH, DtoD, PtoP (between GPUs), HtoH, or fill; absent if unknown"),
        Column("host_memory", "words", "memory on the host side: pageable, pinned or managed; absent if unknown"),
        Column("count", "int64", "number of copies"),
        Column("sized", "int64", "number of copies with known size"),
        Column("bytes", "int64", "total bytes of the copies with known size; -1 if none"),
        Column("total_ns", "int64", "sum of their durations"),
        Column("median_ns", "int64", "median duration, rounded down"),
        Column("rate_bytes_per_s", "float64", "bytes per second of copies with known size and duration; NaN if none"),
    ),
)

_CUDA = re.compile(r"\b([HDAP])to([HDAP])\b")  # "Memcpy HtoD (Pageable -> Device)"
_ROCM = re.compile(r"(host|device|peer)_?to_?(host|device|peer)", re.IGNORECASE)  # "CopyHostToDevice"
_HOST_MEMORY = re.compile(r"Pageable|Pinned|Managed")


def copy_table(run: Run, device: int | None = None) -> Rows:
    """Return one row for each kind of copy or memset, by name, most time first."""
    work = device_work(run, device).of_kind(EventKind.MEMCPY, EventKind.MEMSET)
    dur, size = work["dur_ns"], work["bytes"]
    groups = group_by_code(work["name"] + 1, dur)  # a copy without a name has the code -1
    names = text_from_codes(work.events.text("name"), groups.code - 1)
    fills = work.events["kind"][work.event_rows[groups.first]] == EventKind.MEMSET.value
    directions = ["fill" if fill else copy_direction(word) for word, fill in zip(names.to_list(), fills, strict=True)]
    is_sized, is_timed = size >= 0, (size > 0) & (dur > 0)
    sized, timed_bytes, timed_ns = groups.sums(is_sized), groups.sums(size * is_timed), groups.sums(dur * is_timed)
    columns = {
        "name": names,
        "direction": TextColumn.of(directions),
        "host_memory": TextColumn.of(map(host_memory, names.to_list())),
        "count": groups.count,
        "sized": sized,
        "bytes": np.where(sized > 0, groups.sums(size * is_sized), -1),
        "total_ns": groups.total,
        "median_ns": groups.median,
        "rate_bytes_per_s": np.divide(timed_bytes * 1e9, timed_ns, out=np.full(len(names), np.nan), where=timed_ns > 0),
    }
    return sort_by_total(COPIES.rows(columns))


def copy_direction(name: str | None) -> str | None:
    """Return the direction of a copy of this name: "HtoD", "DtoH", "DtoD", "PtoP"; None if unknown."""
    match = _CUDA.search(name or "") or _ROCM.search(name or "")
    return f"{match[1][0].upper()}to{match[2][0].upper()}" if match else None


def host_memory(name: str | None) -> str | None:
    """Return the kind of host memory that a copy of this name uses; None if there is none or it is unknown."""
    match = _HOST_MEMORY.search(name or "")
    return match[0].lower() if match else None
