"""Roofline: FLOP/s and memory traffic of each operator's kernels against the GPU's peaks, and MFU of the step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gpulab.analysis.kernels.bytes_moved import min_bytes_moved
from gpulab.analysis.kernels.families import is_elementwise
from gpulab.analysis.kernels.flops import Inputs, Product, flops, matrix_product, parse_inputs
from gpulab.analysis.kernels.interior_kernels import InteriorKernels, interior_kernels
from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.analysis.kernels.tensor_cores import kernel_arithmetic
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.hardware.precision import Precision, peak_flops_per_s
from gpulab.intervals import Ints, Spans
from gpulab.run import Run

MAX_KINDS_OF_WORK = 300  # maximum number of kinds of work


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorWork:
    """All calls of one operator with the same input sizes and types."""

    op: str
    inputs: Inputs
    kernels: Ints  # indices of their kernels in the interior
    count: int  # number of calls in all interior steps
    total_ns: int  # total time of their kernels
    flops: float | None  # of one call
    bytes: float | None  # minimum bytes moved by one call
    precision: Precision  # of the arithmetic, by kernel name, else by input type

    @property
    def product(self) -> Product | None:
        """The operator as a matrix product; None if it is none."""
        return matrix_product(self.op, self.inputs)

    @property
    def flops_per_s(self) -> float | None:
        """Achieved FLOP/s; None if unknown."""
        return None if self.flops is None or not self.total_ns else self.flops * self.count / self.total_ns * 1e9

    @property
    def bytes_per_s(self) -> float | None:
        """Achieved memory traffic, a lower bound: data read twice counts once; None if unknown."""
        return None if self.bytes is None or not self.total_ns else self.bytes * self.count / self.total_ns * 1e9


def operator_work_of_run(run: Run, steps: Steps, ledger: Ledger) -> tuple[OperatorWork, ...]:
    """Return the work of the interior kernels of a run; empty if there are none."""
    kernels = interior_kernels(run, steps, ledger)
    return operator_work(kernels) if kernels is not None else ()


def operator_work(kernels: InteriorKernels) -> tuple[OperatorWork, ...]:
    """Return the operators behind the kernels by size, most time first; empty if sizes were not recorded."""
    shapes = kernels.run.shape_rows
    if not len(shapes):
        return ()
    count = len(kernels.run.event_rows)
    is_known = (
        kernels.op >= 0
    ) & kernels.started_inside  # complete kernels only, as their FLOPs are divided by their time
    op = np.maximum(kernels.op, 0)
    keys = np.stack(
        [kernels.run.event_rows["name"][op], *(shapes.per_event(column, count)[op] for column in ("shapes", "dtypes"))]
    ).astype(np.int64)
    is_known &= (keys >= 0).all(axis=0)
    if not is_known.any():
        return ()
    distinct, key_of_row = _distinct_columns(keys[:, is_known])
    time = np.bincount(key_of_row, weights=kernels["dur_ns"][is_known], minlength=distinct.shape[1])
    order = np.argsort(-time, kind="stable")
    rank_of_key = np.empty(len(order), np.int64)
    rank_of_key[order] = np.arange(len(order))
    rank_of_row = rank_of_key[key_of_row]
    rows = np.flatnonzero(is_known)[np.argsort(rank_of_row, kind="stable")]
    rows_by_key = np.split(rows, np.cumsum(np.bincount(rank_of_row, minlength=len(order)))[:-1])
    _, first_of_call = np.unique(kernels.op[is_known], return_index=True)  # all kernels of a call have its key
    counts = np.bincount(rank_of_row[first_of_call], minlength=len(order))
    names, dur_ns = kernels.run.event_rows.text("name").vocabulary, kernels["dur_ns"]
    texts = tuple(shapes.text(column).vocabulary for column in ("shapes", "dtypes"))
    # With variable sequence lengths there are very many sizes; the few hundred with most time suffice.
    chosen = order[:MAX_KINDS_OF_WORK]
    return tuple(
        _work(kernels, dur_ns[index], index, count, _call_cost(names[name], texts[0][shape], texts[1][dtype]))
        for index, count, (name, shape, dtype) in zip(
            rows_by_key, counts.tolist(), distinct[:, chosen].T.tolist(), strict=False
        )
    )


def _distinct_columns(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct columns of this array in lexical order, and the index of each column among them."""
    codes = keys[0]
    for row in keys[1:]:
        _, codes = np.unique(codes * (int(row.max()) + 1) + row, return_inverse=True)
    _, first = np.unique(codes, return_index=True)
    return keys[:, first], codes


class _CallCost(NamedTuple):
    """One call of an operator: FLOPs and minimum bytes moved, None if unknown."""

    op: str
    inputs: Inputs
    flops: float | None
    bytes: float | None


@lru_cache(maxsize=20_000)  # all ranks of a job call the same operators with the same sizes
def _call_cost(op: str, shapes: str, dtypes: str) -> _CallCost:
    op_inputs = parse_inputs(shapes, dtypes)
    return _CallCost(op, op_inputs, flops(op, op_inputs), min_bytes_moved(op, op_inputs))


def _work(kernels: InteriorKernels, dur_ns: Ints, index: Ints, count: int, call: _CallCost) -> OperatorWork:
    longest = int(kernels.code[index[int(dur_ns.argmax())]])
    by_name = kernel_arithmetic(kernels.name(longest)).precision if longest >= 0 else Precision.UNKNOWN
    return OperatorWork(
        op=call.op,
        inputs=call.inputs,
        kernels=index,
        count=count,
        total_ns=int(dur_ns.sum()),
        flops=call.flops,
        bytes=call.bytes,
        precision=call.inputs.precision if by_name is Precision.UNKNOWN else by_name,
    )


@dataclass(frozen=True, kw_only=True)
class FlopsUtilisation:
    """FLOP/s of a typical step as a share of the GPU's peak (model FLOPs utilisation, MFU)."""

    flops: float  # of a step, over operators with known sizes
    known_frac: float  # share of matrix kernel time with known FLOPs
    precision: Precision  # precision with most kernel time
    peak: float  # floating-point operations per second
    spec: GpuSpec
    step_frac: float  # share of the peak over the whole step
    kernel_frac: float  # share of the peak while these kernels ran


def flops_utilisation(
    kernels: InteriorKernels, step_ns: int, all_work: tuple[OperatorWork, ...]
) -> FlopsUtilisation | None:
    """Compute the MFU of a step; None if sizes or the GPU's peak are unknown."""
    spec = spec_of(kernels.gpu)
    with_flops = [work for work in all_work if work.flops is not None]
    if spec is None or not with_flops:
        return None
    matrix = kernels.mask_names(is_matrix) & kernels.started_inside
    matrix_ns = float(kernels["dur_ns"][matrix].sum())
    by_precision: dict[Precision, float] = {}
    for work in with_flops:
        by_precision[work.precision] = by_precision.get(work.precision, 0.0) + float(work.total_ns)
    precision = max(by_precision, key=lambda candidate: by_precision[candidate])
    peak = peak_flops_per_s(spec, precision)
    if peak is None:
        return None
    total_flops = sum((work.flops or 0.0) * work.count for work in with_flops)
    known_ns = float(sum(work.total_ns for work in with_flops))
    return FlopsUtilisation(
        flops=total_flops / kernels.step_count,
        known_frac=min(1.0, known_ns / matrix_ns) if matrix_ns else 0.0,
        precision=precision,
        peak=peak,
        spec=spec,
        step_frac=total_flops / kernels.step_count / (step_ns / 1e9) / peak,
        kernel_frac=total_flops / (known_ns / 1e9) / peak,
    )


@dataclass(frozen=True, kw_only=True)
class MemoryBoundWork:
    """Memory-bound kernels, which move data at nearly the peak rate of the memory."""

    cost_ns: int  # per typical step
    rate_bytes_per_s: float
    spec: GpuSpec
    ops: tuple[tuple[str, int], ...]  # operators and ns per step, most first
    float32: bool  # most of the data is float32
    spans: Spans


def memory_bound_work(
    kernels: InteriorKernels, all_work: tuple[OperatorWork, ...], near_frac: float
) -> MemoryBoundWork | None:
    """Find elementwise kernels that reach `near_frac` of the memory's peak rate; None if none do or it is unknown."""
    spec = spec_of(kernels.gpu)
    if spec is None:
        return None
    pointwise = kernels.mask_names(is_elementwise)
    # A rate above the peak comes from the cache, or from an operator that does not read all of its input.
    min_rate, max_rate = near_frac * spec.memory_bytes_per_s, 1.1 * spec.memory_bytes_per_s
    memory_bound = [
        work for work in all_work if min_rate <= (work.bytes_per_s or 0.0) <= max_rate and pointwise[work.kernels].all()
    ]
    if not memory_bound:
        return None
    mask = np.zeros(len(kernels), bool)
    mask[np.concatenate([work.kernels for work in memory_bound])] = True
    spans = kernels.exposed(mask)
    by_op: dict[str, int] = {}
    for work in memory_bound:
        by_op[work.op] = by_op.get(work.op, 0) + work.total_ns
    moved_total = sum((work.bytes or 0.0) * work.count for work in memory_bound)
    float32_ns = sum(work.total_ns for work in memory_bound if work.inputs.precision is Precision.FLOAT32)
    total_ns = sum(work.total_ns for work in memory_bound)
    return MemoryBoundWork(
        cost_ns=kernels.typical_ns(spans),
        rate_bytes_per_s=moved_total / total_ns * 1e9,
        spec=spec,
        ops=tuple(sorted(((op, ns // kernels.step_count) for op, ns in by_op.items()), key=lambda item: -item[1])),
        float32=float32_ns > total_ns / 2,
        spans=spans,
    )
