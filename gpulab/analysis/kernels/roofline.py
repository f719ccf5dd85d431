"""Each operator's kernels against what the GPU can do: arithmetic, memory traffic, and the step as a whole (MFU)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.kernels.bytes_moved import moved_bytes
from gpulab.analysis.kernels.families import is_pointwise
from gpulab.analysis.kernels.flops import Inputs, Product, flops, inputs, product
from gpulab.analysis.kernels.interior import Interior, interior
from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.kernels.tensor_cores import maths
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.hardware.precision import Precision, peak_flops_per_s
from gpulab.intervals import Ints, Spans
from gpulab.run import Run

MOST = 300  # kinds of work that are looked at


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """All calls of one operator with inputs of one size and type."""

    op: str
    given: Inputs
    kernels: Ints  # which kernels of the interior they launched
    count: int  # calls in all interior steps
    total_ns: int  # what their kernels took together
    flops: float | None  # of one call
    bytes: float | None  # that one call must move at least
    precision: Precision  # of the arithmetic: what the kernels say, else what the inputs say

    @property
    def product(self) -> Product | None:
        """As a matrix product; None where it is none."""
        return product(self.op, self.given)

    @property
    def flops_per_s(self) -> float | None:
        """Arithmetic reached."""
        return None if self.flops is None or not self.total_ns else self.flops * self.count / self.total_ns * 1e9

    @property
    def bytes_per_s(self) -> float | None:
        """Memory traffic reached, at least: what is read twice is counted once."""
        return None if self.bytes is None or not self.total_ns else self.bytes * self.count / self.total_ns * 1e9


def sized(run: Run, steps: Steps, ledger: Ledger) -> tuple[Work, ...]:
    """The works of a run's interior kernels; empty where there are none."""
    kernels = interior(run, steps, ledger)
    return works(kernels) if kernels is not None else ()


def works(kernels: Interior) -> tuple[Work, ...]:
    """The operators behind the kernels, by size, most time first; empty where sizes were not recorded."""
    shapes = kernels.run.shape_rows
    if not len(shapes):
        return ()
    count = len(kernels.run.event_rows)
    told = (kernels.op >= 0) & kernels.begun  # whole kernels only: their work is set against their time
    op = np.maximum(kernels.op, 0)
    keys = np.stack(
        [kernels.run.event_rows["name"][op], *(shapes.spread(column, count)[op] for column in ("shapes", "dtypes"))]
    ).astype(np.int64)
    told &= (keys >= 0).all(axis=0)
    if not told.any():
        return ()
    each, group = np.unique(keys[:, told], axis=1, return_inverse=True)
    group = group.reshape(-1)
    time = np.bincount(group, weights=kernels["dur_ns"][told], minlength=each.shape[1])
    order = np.argsort(-time, kind="stable")
    ranked = np.empty(len(order), np.int64)
    ranked[order] = np.arange(len(order))
    places = ranked[group]
    rows = np.flatnonzero(told)[np.argsort(places, kind="stable")]
    parts = np.split(rows, np.cumsum(np.bincount(places, minlength=len(order)))[:-1])
    # Sizes differ endlessly where sequences do: the largest few hundred hold all that is worth a word.
    return tuple(
        _work(kernels, chosen, each[:, key].tolist()) for chosen, key in zip(parts, order[:MOST].tolist(), strict=False)
    )


def _work(kernels: Interior, chosen: Ints, key: list[int]) -> Work:
    rows = kernels.run.shape_rows
    op = kernels.run.event_rows.words("name").vocabulary[key[0]]
    given = inputs(rows.words("shapes").vocabulary[key[1]], rows.words("dtypes").vocabulary[key[2]])
    longest = int(kernels.code[chosen[int(kernels["dur_ns"][chosen].argmax())]])
    by_name = maths(kernels.name(longest)).precision if longest >= 0 else Precision.UNKNOWN
    return Work(
        op=op,
        given=given,
        kernels=chosen,
        count=len(np.unique(kernels.op[chosen])),
        total_ns=int(kernels["dur_ns"][chosen].sum()),
        flops=flops(op, given),
        bytes=moved_bytes(op, given),
        precision=given.precision if by_name is Precision.UNKNOWN else by_name,
    )


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """The arithmetic of a typical step against the GPU's peak (model FLOPs utilisation)."""

    flops: float  # of a step, as far as sizes tell
    told_frac: float  # share of matrix kernel time whose arithmetic is known
    precision: Precision  # in which most of it is done
    peak: float  # floating-point operations per second
    spec: GpuSpec
    step_frac: float  # of the peak, over the whole step
    kernel_frac: float  # of the peak, while these kernels ran


def utilisation(kernels: Interior, step_ns: int, found: tuple[Work, ...]) -> Utilisation | None:
    """How much of the GPU's arithmetic a step uses; None where sizes or the GPU's peak are not known."""
    spec = spec_of(kernels.gpu)
    known = [work for work in found if work.flops is not None]
    if spec is None or not known:
        return None
    matrix = kernels.which(is_matrix) & kernels.begun
    all_ns = float(kernels["dur_ns"][matrix].sum())
    by_precision: dict[Precision, float] = {}
    for work in known:
        by_precision[work.precision] = by_precision.get(work.precision, 0.0) + float(work.total_ns)
    precision = max(by_precision, key=lambda each: by_precision[each])
    peak = peak_flops_per_s(spec, precision)
    if peak is None:
        return None
    done = sum((work.flops or 0.0) * work.count for work in known)
    took_ns = float(sum(work.total_ns for work in known))
    return Utilisation(
        flops=done / kernels.many,
        told_frac=min(1.0, took_ns / all_ns) if all_ns else 0.0,
        precision=precision,
        peak=peak,
        spec=spec,
        step_frac=done / kernels.many / (step_ns / 1e9) / peak,
        kernel_frac=done / (took_ns / 1e9) / peak,
    )


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Kernels that move data about as fast as the memory allows."""

    cost_ns: int  # of a typical step
    rate_bytes_per_s: float
    spec: GpuSpec
    ops: tuple[tuple[str, int], ...]  # operators and what they take a step, most first
    float32: bool  # most of the data is float32
    spans: Spans


def traffic(kernels: Interior, found: tuple[Work, ...], near_frac: float) -> Traffic | None:
    """Elementwise kernels that reach this share of the memory's peak rate; None where none does, or it is not known."""
    spec = spec_of(kernels.gpu)
    if spec is None:
        return None
    pointwise = kernels.which(is_pointwise)
    # A rate beyond the peak is that of the cache, or of an operator that does not read all it is given.
    least, most = near_frac * spec.memory_bytes_per_s, 1.1 * spec.memory_bytes_per_s
    bound = [work for work in found if least <= (work.bytes_per_s or 0.0) <= most and pointwise[work.kernels].all()]
    if not bound:
        return None
    mask = np.zeros(len(kernels), bool)
    mask[np.concatenate([work.kernels for work in bound])] = True
    spans = kernels.exposed(mask)
    by_op: dict[str, int] = {}
    for work in bound:
        by_op[work.op] = by_op.get(work.op, 0) + work.total_ns
    moved = sum((work.bytes or 0.0) * work.count for work in bound)
    single = sum(work.total_ns for work in bound if work.given.precision is Precision.FLOAT32)
    took_ns = sum(work.total_ns for work in bound)
    return Traffic(
        cost_ns=kernels.typical_ns(spans),
        rate_bytes_per_s=moved / took_ns * 1e9,
        spec=spec,
        ops=tuple(sorted(((op, ns // kernels.many) for op, ns in by_op.items()), key=lambda each: -each[1])),
        float32=single > took_ns / 2,
        spans=spans,
    )
