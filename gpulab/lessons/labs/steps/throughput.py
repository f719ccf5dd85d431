"""What a recorded loop gives a second, and how its kernels use the GPU; and what a step costs the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.analysis.kernels.interior import Interior, interior
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.errors import RunError
from gpulab.run import Run
from gpulab.wording import number, percent

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A typical step of a run on a GPU."""

    per_s: float  # samples
    step_ns: float
    kernels: float  # that one step launches
    kernel_ns: float  # what they take together
    filled_frac: float  # of the multiprocessors, how many have a thread block to work on, by kernel time, at most

    @property
    def busy_frac(self) -> float:
        """The share of the step in which a kernel runs, 0-1."""
        return min(1.0, self.kernel_ns / self.step_ns)

    @property
    def each_ns(self) -> float:
        """What one kernel takes, on average."""
        return self.kernel_ns / self.kernels


def step_ms(run: Run) -> float:
    """A typical step, without the profiler where that was measured. Raises RunError for a run without one."""
    found = steps(run).step_ns
    if found is None:
        raise RunError(
            f"Run {run.name} has no step.", why="none was seen from its begin to its end", fix="record more steps"
        )
    return found / 1e6


def inside(run: Run) -> Interior:
    """The kernels of a run's whole recorded steps. Raises RunError for a run without any."""
    found = steps(run)
    accounts = ledger(run, found)
    kernels = interior(run, found, accounts) if accounts is not None else None
    if kernels is None:
        raise RunError(
            f"Run {run.name} does not tell how a GPU is used.",
            why="it has no kernels in whole steps",
            fix="record CUDA code, with an optimizer that steps or gpulab.step() at the end of each step",
        )
    return kernels


def kernels_per_step(run: Run) -> float:
    """Pieces of work that the GPU begins in a typical step. Raises RunError for a run without any."""
    kernels = inside(run)
    return float(kernels.begun.sum()) / kernels.many


def seen(run: Run, samples: int = 1) -> Seen:
    """What a run shows of a step with so many samples. Raises RunError for one without kernels in whole steps."""
    kernels, step_ns = inside(run), 1e6 * step_ms(run)
    begun = kernels.begun  # not those that reach in from the step before
    took_ns = kernels["dur_ns"][begun].astype(np.float64)
    blocks = run.grid_rows.spread("grid", len(run.event_rows))[kernels.event][begun]
    total = (kernels.gpu.multiprocessors if kernels.gpu else None) or 1
    filled = np.clip(blocks / total, 0.0, 1.0)
    return Seen(
        per_s=samples * 1e9 / step_ns,
        step_ns=step_ns,
        kernels=len(took_ns) / kernels.many,
        kernel_ns=float(took_ns.sum()) / kernels.many,
        filled_frac=float((filled * took_ns).sum() / took_ns.sum()),
    )


def table(loops: Mapping[str, Seen], **more: Iterable[object]) -> pd.DataFrame:
    """These loops side by side, a row each; `more`: further columns, a value for each loop."""
    import pandas as pd

    rows = {
        name: {
            "samples/s": number(each.per_s),
            "kernels a step": number(each.kernels),
            "us each": number(each.each_ns / 1000),
            "GPU busy": percent(each.busy_frac),
            "filled": percent(each.filled_frac),
        }
        for name, each in loops.items()
    }
    columns: dict[str, Any] = {name: list(values) for name, values in more.items()}
    return pd.DataFrame.from_dict(rows, orient="index").assign(**columns)


def fastest_s(step: Callable[[], object], repeats: int) -> float:
    """Seconds of the CPU that the fastest of so many calls takes, after one that warms up.

    Seconds worked, not seconds passed: what other programs do meanwhile is no part of it.
    """
    step()
    taken_s = []
    for _ in range(repeats):
        began = time.process_time()
        step()
        taken_s.append(time.process_time() - began)
    return min(taken_s)
