"""Thirteen counters of a run, to check a diagnosis against: a rival cause would change at least one of them.

All are computed from the recording, over the complete steps. A value that the run does not contain is absent, not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction, host_memory
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.kernels.families import is_layout_conversion
from gpulab.analysis.kernels.interior_kernels import InteriorKernels, interior_kernels
from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.analysis.kernels.occupancy import gpu_fill
from gpulab.analysis.kernels.optimizers import optimizer_cost_on_gpu, optimizer_steps
from gpulab.analysis.kernels.tensor_cores import Cores, kernel_arithmetic
from gpulab.analysis.memory.growth import memory_growths
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.ledger import DISPATCH_KEYS, Ledger, build_ledger
from gpulab.intervals import covered_ns
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind
from gpulab.wording import percent, size

BYTES = ("to_gpu", "to_host", "growth")  # counters in bytes; all others are fractions
WORKING = ("matmul", "kernels", "communication", "compute")  # without copies, which need no multiprocessor


@dataclass(frozen=True, eq=False)
class AnalysedRun:
    """A run with its steps, ledger and kernels, computed once for all counters."""

    run: Run

    @cached_property
    def steps(self) -> Steps:
        """The steps of the run."""
        return find_steps(self.run)

    @cached_property
    def accounts(self) -> Ledger | None:
        """The ledger of the steps; None if no step was recorded with events."""
        return build_ledger(self.run, self.steps)

    @cached_property
    def kernels(self) -> InteriorKernels | None:
        """The kernels of the complete steps; None without GPU work."""
        return interior_kernels(self.run, self.steps, self.accounts) if self.accounts else None

    def share(self, *parts: str) -> float | None:
        """Return these parts of the ledger / step time; None without a ledger."""
        return (
            self.accounts.total_frac(*(key for key in parts if key in self.accounts.part_ns)) if self.accounts else None
        )


def busy(analysed: AnalysedRun) -> float | None:
    """Fraction of a step in which the device computes: "utilisation" of a monitor."""
    return analysed.share(*WORKING)


def loader(analysed: AnalysedRun) -> float | None:
    """Fraction of a step in which the device is idle while the loop waits for the DataLoader."""
    return analysed.share("loader")


def worker_cpu(analysed: AnalysedRun) -> float | None:
    """CPU use of a DataLoader worker, in cores: near 1 it computes, near 0 it waits. Absent without workers."""
    rows = analysed.run.worker_rows
    cpu_s, lifetime_s = 0.0, 0.0
    for worker in np.unique(rows["worker"]).tolist():
        samples = rows.select(rows["worker"] == worker)
        cpu_s += float(np.ptp(samples["cpu_s"]))
        lifetime_s += float(np.ptp(samples["at_ns"])) / 1e9
    return cpu_s / lifetime_s if lifetime_s else None


def python(analysed: AnalysedRun) -> float | None:
    """Fraction of a step in which the device is idle while Python code outside PyTorch runs."""
    return analysed.share("python")


def calls(analysed: AnalysedRun) -> float | None:
    """Fraction of a step in which the device is idle while operators are dispatched and kernels launched."""
    return analysed.share(*DISPATCH_KEYS)


def copies(analysed: AnalysedRun) -> float | None:
    """Fraction of a step with copies and no computation (exposed copies). Absent without a GPU."""
    return analysed.share("copies") if analysed.kernels is not None else None


def to_gpu(analysed: AnalysedRun) -> float | None:
    """Bytes per step copied to the GPU from pageable memory. Absent without a GPU."""
    return _copied_bytes(analysed, "HtoD", "pageable")


def to_host(analysed: AnalysedRun) -> float | None:
    """Bytes per step copied from the GPU to the host. Absent without a GPU."""
    return _copied_bytes(analysed, "DtoH", None)


def optimizer(analysed: AnalysedRun) -> float | None:
    """Fraction of a step in the optimizer: GPU time, or host time without a GPU."""
    if analysed.accounts is None:
        return None
    if analysed.kernels is not None:
        update = optimizer_cost_on_gpu(analysed.kernels)
        return update.cost_ns / max(1, analysed.steps.traced_ns or 1) if update else None
    spans = rows_in_interior(optimizer_steps(analysed.run), analysed.steps).spans()
    return float(covered_ns(spans, *analysed.steps.interior_bounds_ns).sum() / max(1, analysed.accounts.step_ns.sum()))


def growth(analysed: AnalysedRun) -> float | None:
    """Growth of memory in use per step, in bytes. Absent with too few memory samples."""
    trends = memory_growths(analysed.run, analysed.steps)
    return max((float(each.per_step.slope) for each in trends), default=None)


def matrix(analysed: AnalysedRun) -> float | None:
    """Fraction of kernel time in matrix kernels: GEMM, convolution, fused attention. Absent without a GPU."""
    return _kernel_time_frac(analysed, lambda kernels: kernels.mask_names(is_matrix), of=None)


def tensor_cores(analysed: AnalysedRun) -> float | None:
    """Fraction of matrix-kernel time on tensor cores. Absent without a GPU."""
    return _kernel_time_frac(
        analysed,
        lambda kernels: kernels.mask_names(lambda name: kernel_arithmetic(name).cores is Cores.TENSOR),
        of=is_matrix,
    )


def filled(analysed: AnalysedRun) -> float | None:
    """Fraction of multiprocessors with a thread block, weighted by kernel time. Absent without a GPU."""
    fill = gpu_fill(analysed.kernels) if analysed.kernels is not None else None
    return None if fill is None else 1 - fill.small_frac * (1 - fill.filled_frac)


@dataclass(frozen=True, kw_only=True)
class RunCounter:
    """One counter: its name, its meaning, and the function that computes it."""

    name: str
    description: str
    compute: Callable[[AnalysedRun], float | None]

    def format(self, value: float | None) -> str:
        """Format a value for display."""
        if value is None:
            return "absent"
        return size(value) if self.name in BYTES else percent(value)


_ALL = (*(busy, loader, worker_cpu, python, calls, copies, to_gpu, to_host, optimizer, growth),)
RUN_COUNTERS: Mapping[str, RunCounter] = {
    reads.__name__: RunCounter(name=reads.__name__, description=(reads.__doc__ or "").strip(), compute=reads)
    for reads in (*_ALL, matrix, tensor_cores, filled)
}


def layout(analysed: AnalysedRun) -> float | None:
    """Fraction of kernel time in NCHW/NHWC conversions. Absent without a GPU."""
    return _kernel_time_frac(analysed, lambda kernels: kernels.mask_names(is_layout_conversion), of=None)


def alloc(analysed: AnalysedRun) -> float | None:
    """Fraction of a step in which the device is idle while cudaMalloc or cudaFree run. Absent without a GPU."""
    return analysed.share("alloc") if analysed.kernels is not None else None


def blocked(analysed: AnalysedRun) -> float | None:
    """Fraction of the samples in which a DataLoader worker waits for a read from storage. Absent without workers."""
    rows = analysed.run.host_rows
    mask = (rows["workers"] > 0) & ~np.isnan(rows["workers_blocked"])
    return float((rows["workers_blocked"][mask] / rows["workers"][mask]).mean()) if mask.any() else None


# Counters for the recordings of a real GPU, beside those above.
MORE_COUNTERS: Mapping[str, RunCounter] = {
    reads.__name__: RunCounter(name=reads.__name__, description=(reads.__doc__ or "").strip(), compute=reads)
    for reads in (layout, alloc, blocked)
}
ALL_COUNTERS: Mapping[str, RunCounter] = {**RUN_COUNTERS, **MORE_COUNTERS}


def read_all_counters(run: Run) -> dict[str, float | None]:
    """Compute every counter of a run, with those for recordings of a real GPU."""
    analysed = AnalysedRun(run)
    return {name: counter.compute(analysed) for name, counter in ALL_COUNTERS.items()}


def read_counters(run: Run) -> dict[str, float | None]:
    """Compute every counter of a run, by name; None if absent."""
    analysed = AnalysedRun(run)
    return {name: counter.compute(analysed) for name, counter in RUN_COUNTERS.items()}


def _copied_bytes(analysed: AnalysedRun, direction: str, memory: str | None) -> float | None:
    if analysed.kernels is None or analysed.accounts is None:
        return None
    rows: Rows = rows_in_interior(analysed.run.event_rows.of_kind(EventKind.MEMCPY), analysed.steps)
    matching = rows.matching(lambda word: copy_direction(word) == direction and memory in (None, host_memory(word)))
    return float(rows["bytes"][matching & (rows["bytes"] > 0)].sum() / len(analysed.accounts.step_ns))


def _kernel_time_frac(
    analysed: AnalysedRun, select: Callable[[InteriorKernels], np.ndarray], *, of: Callable[[str], bool] | None
) -> float | None:
    """Return the time of the selected kernels / the time of all kernels, or of those whose name passes `of`."""
    kernels = analysed.kernels
    if kernels is None or not len(kernels):
        return None
    selectable = np.ones(len(kernels), bool) if of is None else kernels.mask_names(of)
    time = kernels["dur_ns"].astype(np.float64)
    total_ns = float(time[selectable].sum())
    return float(time[selectable & select(kernels)].sum()) / total_ns if total_ns else None
