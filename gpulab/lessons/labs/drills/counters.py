"""Thirteen counters of a run: what a diagnosis can be held against, each a number that a rival cause would change.

All are worked out from what was recorded, over the interior steps. What a run cannot tell is absent, and not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpulab.analysis.copies.table import direction, host_memory
from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.kernels.interior import Interior, interior
from gpulab.analysis.kernels.occupancy import filling
from gpulab.analysis.kernels.optimizers import ranges, updating_on_gpu
from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.kernels.tensor_cores import Cores, maths
from gpulab.analysis.memory.growth import growths
from gpulab.analysis.steps.detection import Steps, steps
from gpulab.analysis.steps.ledger import DISPATCHING, Ledger, ledger
from gpulab.intervals import covered_ns
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind
from gpulab.wording import percent, size

BYTES = ("to_gpu", "to_host", "growth")  # counters of bytes; all others are shares
WORKING = ("matmul", "kernels", "communication", "compute")  # a copy keeps no multiprocessor busy


@dataclass(frozen=True, eq=False)
class Counted:
    """A run with its steps and its ledger, worked out once for all counters."""

    run: Run

    @cached_property
    def steps(self) -> Steps:
        """Its steps."""
        return steps(self.run)

    @cached_property
    def accounts(self) -> Ledger | None:
        """Where each step went; None where no step was recorded with events."""
        return ledger(self.run, self.steps)

    @cached_property
    def kernels(self) -> Interior | None:
        """The kernels of the interior steps; None without a GPU's work."""
        return interior(self.run, self.steps, self.accounts) if self.accounts else None

    def share(self, *parts: str) -> float | None:
        """These parts of the ledger, of all step time; None where no ledger is."""
        return self.accounts.frac(*(key for key in parts if key in self.accounts.part_ns)) if self.accounts else None


def busy(told: Counted) -> float | None:
    """Share of a step in which the device computes: what a monitor calls utilisation."""
    return told.share(*WORKING)


def loader(told: Counted) -> float | None:
    """Share of a step in which the device idles while the loop is inside the DataLoader."""
    return told.share("loader")


def worker_cpu(told: Counted) -> float | None:
    """Cores that a DataLoader worker keeps busy: near 1 it computes, near 0 it waits. Absent without workers."""
    rows = told.run.worker_rows
    spent_s, lived_s = 0.0, 0.0
    for worker in np.unique(rows["worker"]).tolist():
        mine = rows.where(rows["worker"] == worker)
        spent_s += float(np.ptp(mine["cpu_s"]))
        lived_s += float(np.ptp(mine["at_ns"])) / 1e9
    return spent_s / lived_s if lived_s else None


def python(told: Counted) -> float | None:
    """Share of a step in which the device idles and no line of PyTorch runs: the loop's own Python code."""
    return told.share("python")


def calls(told: Counted) -> float | None:
    """Share of a step in which the device idles while operators are called and launched."""
    return told.share(*DISPATCHING)


def copies(told: Counted) -> float | None:
    """Share of a step in which data is copied and nothing is computed. Absent without a GPU."""
    return told.share("copies") if told.kernels is not None else None


def to_gpu(told: Counted) -> float | None:
    """Bytes a step that go to the GPU from memory that is not pinned. Absent without a GPU."""
    return _copied(told, "HtoD", "pageable")


def to_host(told: Counted) -> float | None:
    """Bytes a step that are fetched from the GPU. Absent without a GPU."""
    return _copied(told, "DtoH", None)


def optimizer(told: Counted) -> float | None:
    """Share of a step that the optimizer takes: of the GPU's time where there is one, else of the loop's."""
    if told.accounts is None:
        return None
    if told.kernels is not None:
        found = updating_on_gpu(told.kernels)
        return found.cost_ns / max(1, told.steps.traced_ns or 1) if found else None
    inside = in_interior(ranges(told.run), told.steps).spans()
    return float(covered_ns(inside, *told.steps.interior_bounds_ns).sum() / max(1, told.accounts.step_ns.sum()))


def growth(told: Counted) -> float | None:
    """Bytes by which memory in use grows from step to step. Absent where it was not read often enough."""
    found = growths(told.run, told.steps)
    return max((float(each.per_step.slope) for each in found), default=None)


def matrix(told: Counted) -> float | None:
    """Share of kernel time in matrix kernels: products, convolutions, fused attention. Absent without a GPU."""
    return _of_kernels(told, lambda kernels: kernels.which(is_matrix), of=None)


def tensor_cores(told: Counted) -> float | None:
    """Share of matrix-kernel time on tensor cores. Absent without a GPU."""
    return _of_kernels(
        told, lambda kernels: kernels.which(lambda name: maths(name).cores is Cores.TENSOR), of=is_matrix
    )


def filled(told: Counted) -> float | None:
    """Share of the multiprocessors that have a thread block, by kernel time. Absent without a GPU."""
    found = filling(told.kernels) if told.kernels is not None else None
    return None if found is None else 1 - found.small_frac * (1 - found.filled_frac)


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One number of a run: how it is called, what it means, and whether it counts bytes or is a share."""

    name: str
    means: str
    reads: Callable[[Counted], float | None]

    def told(self, value: float | None) -> str:
        """A value as it is shown."""
        if value is None:
            return "absent"
        return size(value) if self.name in BYTES else percent(value)


_ALL = (*(busy, loader, worker_cpu, python, calls, copies, to_gpu, to_host, optimizer, growth),)
COUNTERS: Mapping[str, Counter] = {
    reads.__name__: Counter(name=reads.__name__, means=(reads.__doc__ or "").strip(), reads=reads)
    for reads in (*_ALL, matrix, tensor_cores, filled)
}


def counters(run: Run) -> dict[str, float | None]:
    """Every counter of a run by its name; None where the run cannot tell."""
    told = Counted(run)
    return {name: counter.reads(told) for name, counter in COUNTERS.items()}


def _copied(told: Counted, way: str, memory: str | None) -> float | None:
    if told.kernels is None or told.accounts is None:
        return None
    rows: Rows = in_interior(told.run.event_rows.of_kind(Kind.MEMCPY), told.steps)
    fits = rows.matching(lambda word: direction(word) == way and memory in (None, host_memory(word)))
    return float(rows["bytes"][fits & (rows["bytes"] > 0)].sum() / len(told.accounts.step_ns))


def _of_kernels(
    told: Counted, mine: Callable[[Interior], np.ndarray], *, of: Callable[[str], bool] | None
) -> float | None:
    """The time of these kernels as a share of all, or of those whose name passes `of`."""
    kernels = told.kernels
    if kernels is None or not len(kernels):
        return None
    among = np.ones(len(kernels), bool) if of is None else kernels.which(of)
    time = kernels["dur_ns"].astype(np.float64)
    whole = float(time[among].sum())
    return float(time[among & mine(kernels)].sum()) / whole if whole else None
