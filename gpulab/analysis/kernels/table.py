"""Kernels by name: how often, how long, and what a name says about its kernel."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.groups import Groups, grouped
from gpulab.columns import Column
from gpulab.intervals import Ints
from gpulab.rows import Rows, Table, Words
from gpulab.run import Run
from gpulab.tables import Kind

KERNELS = Table(
    "kernels",
    (
        Column("name", "words", "the kernel, as the trace names it"),
        Column("kind", "int8", "kernel, or collective: one that communicates", Kind),
        Column("matrix", "bool", "by its name it multiplies matrices: GEMM, convolution, fused attention"),
        Column("count", "int64", "how often it ran"),
        Column("total_ns", "int64", "how long all its runs took together, beside one another or not"),
        Column("share_frac", "float64", "total_ns as a share of that of all kernels, 0-1"),
        Column("min_ns", "int64", "its shortest run"),
        Column("median_ns", "int64", "its median run, rounded down"),
        Column("mean_ns", "int64", "its mean run, rounded down"),
        Column("max_ns", "int64", "its longest run"),
        Column("streams", "words", "the streams it ran on"),
        Column("grid", "int64", "thread blocks of its first run; -1 if not told"),
        Column("block", "int32", "threads per block of its first run; -1 if not told"),
    ),
)

# Families by name, from the traces of V100, A100, H100, B200, MI210-MI300 and cuBLAS, cuDNN and CUTLASS's own rules.
# In lower case, as the names they search: ten times as fast as to ignore case.
_MATRIX = re.compile(
    r"gemm|gemv|gemmk|nvjet|wgmma|tensorop|_mma_|xmma|hmma|imma|s\d+(?:gemm|cudnn)|884|1688|16816|16832"
    r"|conv|cudnn.*(?:fprop|dgrad|wgrad)|fprop|dgrad|wgrad|winograd|implicit_|scudnn|cutlass|bmm_|_mm_|matmul"
    r"|fmha|flash_(?:fwd|bwd)|mha_(?:fwd|bwd)|attention_kernel|attn_(?:fwd|bwd)|cijk_|miopenconv|igemm|naive_conv"
    r"|ck_tile.*gemm"
)
_NOT_MATRIX = re.compile(r"nchwtonhwc|nhwctonchw|elementwise|reduce_kernel|memcpy|memset|convert|splitkreduce")
# Words in which a matrix library only lends its name: FBGEMM's tables, MIOpen's tensor operations, CUTLASS's types.
_LENT = re.compile(r"fbgemm_gpu|subtensorop|cutlass::(?:bfloat16|half|float_e\w+)_t|finalizekernel")


@cache
def is_matrix(name: str) -> bool:
    """Whether a kernel of this name multiplies matrices: GEMM, convolution, fused attention."""
    lower = name.lower()
    return not _NOT_MATRIX.search(lower) and bool(_MATRIX.search(_LENT.sub("", lower)))


def kernel_table(run: Run, device: int | None = None) -> Rows:
    """One row for each kernel name, most time first; kernels without a launch in the trace count as any other."""
    work = device_work(run, device).of_kind(Kind.KERNEL, Kind.COLLECTIVE)
    groups = grouped(work["name"] + 1, work["dur_ns"])  # a kernel without a name has the code -1
    words = named(work.events.words("name"), groups.code - 1)
    matrix = np.array([word is not None and is_matrix(word) for word in words.to_list()], bool)
    first = work.event[groups.first]
    columns = {
        "name": words,
        "kind": work.events["kind"][first],
        "matrix": matrix,
        "count": groups.count,
        "total_ns": groups.total,
        "share_frac": groups.total / max(1, int(groups.total.sum())),
        "min_ns": groups.least,
        "median_ns": groups.median,
        "mean_ns": groups.total // groups.count,
        "max_ns": groups.most,
        "streams": _streams(groups, work["stream"]),
        **{column: run.grid_rows.spread(column, len(run.event_rows))[first] for column in ("grid", "block")},
    }
    return most_first(KERNELS.rows(columns))


def most_first(rows: Rows) -> Rows:
    """Rows by their total time, largest first; equals by name."""
    names, total = rows.words("name").to_list(), rows["total_ns"].tolist()
    order = sorted(range(len(rows)), key=lambda row: (-total[row], names[row] or ""))
    return rows.where(np.array(order, np.int64))


def named(words: Words, codes: Ints) -> Words:
    """A text column of these words of another."""
    return Words.of(words.vocabulary[code] if code >= 0 else None for code in codes.tolist())


def _streams(groups: Groups, streams: Ints) -> Words:
    """For each kernel, the streams it ran on: "7, 20"; absent where the trace does not tell."""
    known = np.unique(streams)
    width = len(known)
    seen: NDArray[np.bool_] = np.zeros((len(groups.code), width), bool)
    seen[groups.of_row, np.searchsorted(known, streams)] = True
    ran_on = (known[row & (known >= 0)].tolist() for row in seen)
    return Words.of(", ".join(map(str, told)) or None for told in ran_on)
