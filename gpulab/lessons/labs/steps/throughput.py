"""Throughput of a recorded loop, its kernels' use of the GPU, and the CPU time of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.analysis.kernels.interior_kernels import InteriorKernels, interior_kernels
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError
from gpulab.extras import require_extra
from gpulab.run import Run
from gpulab.wording import number, percent

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class StepThroughput:
    """Throughput and kernels of a typical step on a GPU."""

    per_s: float  # samples per second
    step_ns: float
    kernels: float  # per step
    kernel_ns: float  # total kernel time per step
    filled_frac: float  # multiprocessors with a thread block, at most, weighted by kernel time

    @property
    def busy_frac(self) -> float:
        """Kernel time / step time, 0-1."""
        return min(1.0, self.kernel_ns / self.step_ns)

    @property
    def mean_kernel_ns(self) -> float:
        """Mean kernel duration."""
        return self.kernel_ns / self.kernels


def step_ms(run: Run) -> float:
    """Return the typical step time, without profiler overhead if that was measured. Raises RunError without steps."""
    step_ns = find_steps(run).step_ns
    if step_ns is None:
        raise RunError(
            f"Run {run.name} has no step.", why="no step was recorded from start to end", fix="record more steps"
        )
    return step_ns / 1e6


def kernels_in_steps(run: Run) -> InteriorKernels:
    """Return the kernels of a run's complete steps. Raises RunError if there are none."""
    run_steps = find_steps(run)
    step_ledger = build_ledger(run, run_steps)
    kernels = interior_kernels(run, run_steps, step_ledger) if step_ledger is not None else None
    if kernels is None:
        raise RunError(
            f"The kernels of run {run.name} are unknown.",
            why="it has no kernels in complete steps",
            fix="record CUDA code, with an optimizer that steps or gpulab.step() at the end of each step",
        )
    return kernels


def kernels_per_step(run: Run) -> float:
    """Return the mean number of kernels and copies that start in a step. Raises RunError if there are none."""
    kernels = kernels_in_steps(run)
    return float(kernels.started_inside.sum()) / kernels.step_count


def step_throughput(run: Run, samples: int = 1) -> StepThroughput:
    """Measure throughput and kernels of a run with `samples` per step. Raises RunError without kernels in steps."""
    kernels, step_ns = kernels_in_steps(run), 1e6 * step_ms(run)
    starts_in_step = kernels.started_inside  # without kernels that started in the step before
    kernel_ns = kernels["dur_ns"][starts_in_step].astype(np.float64)
    blocks = run.grid_rows.per_event("grid", len(run.event_rows))[kernels.event_rows][starts_in_step]
    multiprocessors = (kernels.gpu.multiprocessors if kernels.gpu else None) or 1
    filled_frac = np.clip(blocks / multiprocessors, 0.0, 1.0)
    return StepThroughput(
        per_s=samples * 1e9 / step_ns,
        step_ns=step_ns,
        kernels=len(kernel_ns) / kernels.step_count,
        kernel_ns=float(kernel_ns.sum()) / kernels.step_count,
        filled_frac=float((filled_frac * kernel_ns).sum() / kernel_ns.sum()),
    )


def throughput_table(loops: Mapping[str, StepThroughput], **more: Iterable[object]) -> pd.DataFrame:
    """Compare loops, one row each; `more`: further columns, one value per loop."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    rows = {
        name: {
            "samples/s": number(each.per_s),
            "kernels per step": number(each.kernels),
            "us per kernel": number(each.mean_kernel_ns / 1000),
            "GPU busy": percent(each.busy_frac),
            "filled": percent(each.filled_frac),
        }
        for name, each in loops.items()
    }
    columns: dict[str, Any] = {name: list(values) for name, values in more.items()}
    return pd.DataFrame.from_dict(rows, orient="index").assign(**columns)


def fastest_cpu_s(step: Callable[[], object], repeats: int) -> float:
    """Return the CPU time of the fastest of `repeats` calls, in seconds, after one warm-up call.

    CPU time instead of wall time: other programs do not disturb it.
    """
    step()
    times_s = []
    for _ in range(repeats):
        start = time.process_time()
        step()
        times_s.append(time.process_time() - start)
    return min(times_s)
