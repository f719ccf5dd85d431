"""Kernels by name, longest total first: count, durations, streams, grid."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.group_statistics import Groups, group_by_code
from gpulab.columns import Column
from gpulab.intervals import Ints
from gpulab.rows import Rows, Table, TextColumn
from gpulab.run import Run
from gpulab.tables import EventKind

KERNELS = Table(
    "kernels",
    (
        Column("name", "words", "the kernel, as the trace names it"),
        Column("kind", "int8", "kernel, or collective (communication)", EventKind),
        Column("matrix", "bool", "whether it is a matrix kernel by name: GEMM, convolution, fused attention"),
        Column("count", "int64", "number of launches"),
        Column("total_ns", "int64", "sum of its durations"),
        Column("share_frac", "float64", "total_ns as a share of that of all kernels, 0-1"),
        Column("min_ns", "int64", "its minimum duration"),
        Column("median_ns", "int64", "its median duration, rounded down"),
        Column("mean_ns", "int64", "its mean duration, rounded down"),
        Column("max_ns", "int64", "its maximum duration"),
        Column("streams", "words", "the streams it ran on"),
        Column("grid", "int64", "thread blocks of its first launch; -1 if unknown"),
        Column("block", "int32", "threads per block of its first launch; -1 if unknown"),
    ),
)

# From traces of V100, A100, H100, B200, MI210-MI300 and the naming rules of cuBLAS, cuDNN and CUTLASS. Patterns are in
# lower case and applied to lower-case names: ten times as fast as ignoring case.
_MATRIX = re.compile(
    r"gemm|gemv|gemmk|nvjet|wgmma|tensorop|_mma_|xmma|hmma|imma|s\d+(?:gemm|cudnn)|884|1688|16816|16832"
    r"|conv|cudnn.*(?:fprop|dgrad|wgrad)|fprop|dgrad|wgrad|winograd|implicit_|scudnn|cutlass|bmm_|_mm_|matmul"
    r"|fmha|flash_(?:fwd|bwd)|mha_(?:fwd|bwd)|attention_kernel|attn_(?:fwd|bwd)|cijk_|miopenconv|igemm|naive_conv"
    r"|ck_tile.*gemm"
)
_NOT_MATRIX = re.compile(r"nchwtonhwc|nhwctonchw|elementwise|reduce_kernel|memcpy|memset|convert|splitkreduce")
# Names of matrix libraries in other kernels: FBGEMM's embedding tables, MIOpen's tensor operations, CUTLASS's types.
_LIBRARY_NAMES = re.compile(r"fbgemm_gpu|subtensorop|cutlass::(?:bfloat16|half|float_e\w+)_t|finalizekernel")


@cache
def is_matrix(name: str) -> bool:
    """Whether a kernel is a matrix kernel by its name: GEMM, convolution, fused attention."""
    lower = name.lower()
    return not _NOT_MATRIX.search(lower) and bool(_MATRIX.search(_LIBRARY_NAMES.sub("", lower)))


def kernel_table(run: Run, device: int | None = None) -> Rows:
    """Return one row for each kernel name, most time first, including kernels without a launch in the trace."""
    work = device_work(run, device).of_kind(EventKind.KERNEL, EventKind.COLLECTIVE)
    groups = group_by_code(work["name"] + 1, work["dur_ns"])  # a kernel without a name has the code -1
    names = text_from_codes(work.events.text("name"), groups.code - 1)
    matrix = np.array([word is not None and is_matrix(word) for word in names.to_list()], bool)
    first = work.event_rows[groups.first]
    columns = {
        "name": names,
        "kind": work.events["kind"][first],
        "matrix": matrix,
        "count": groups.count,
        "total_ns": groups.total,
        "share_frac": groups.total / max(1, int(groups.total.sum())),
        "min_ns": groups.minimum,
        "median_ns": groups.median,
        "mean_ns": groups.total // groups.count,
        "max_ns": groups.maximum,
        "streams": _streams(groups, work["stream"]),
        **{column: run.grid_rows.per_event(column, len(run.event_rows))[first] for column in ("grid", "block")},
    }
    return sort_by_total(KERNELS.rows(columns))


def sort_by_total(rows: Rows) -> Rows:
    """Sort rows by total time, largest first, then by name."""
    names, total = rows.text("name").to_list(), rows["total_ns"].tolist()
    order = sorted(range(len(rows)), key=lambda row: (-total[row], names[row] or ""))
    return rows.select(np.array(order, np.int64))


def text_from_codes(column: TextColumn, codes: Ints) -> TextColumn:
    """Build a text column from codes of another one."""
    return TextColumn.of(column.vocabulary[code] if code >= 0 else None for code in codes.tolist())


def _streams(groups: Groups, streams: Ints) -> TextColumn:
    """Return the streams of each kernel: "7, 20"; absent if unknown."""
    all_streams = np.unique(streams)
    width = len(all_streams)
    used: NDArray[np.bool_] = np.zeros((len(groups.code), width), bool)
    used[groups.of_row, np.searchsorted(all_streams, streams)] = True
    streams_by_kernel = (all_streams[row & (all_streams >= 0)].tolist() for row in used)
    return TextColumn.of(", ".join(map(str, numbers)) or None for numbers in streams_by_kernel)
