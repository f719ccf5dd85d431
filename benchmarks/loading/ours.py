"""The gpulab side of the loading benchmark, in a separate process: python benchmarks/loading/ours.py WAY FILE.

It imports no more than a user's script would, and prints its results as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpulab.run import Run

Results = dict[str, float | int | None]


def main() -> None:
    """Run one variant and print its results."""
    way, path = sys.argv[1:]
    print(json.dumps({"load": load, "figures": figures, "frame": frame}[way](path)))


def load(path: str) -> Results:
    """Load only."""
    return loaded(path)[1]


def figures(path: str) -> Results:
    """Load, then the basic figures."""
    run, results = loaded(path)
    return results | basic_figures(run)


def frame(path: str) -> Results:
    """The same with pandas imported and the events as a DataFrame: what a notebook holds."""
    import pandas as pd

    run, results = loaded(path)
    results |= basic_figures(run)
    assert isinstance(run.events, pd.DataFrame)
    return results


def loaded(path: str) -> tuple[Run, Results]:
    """The run, how many events it has, and the CPU time that reading took once all was imported."""
    from gpulab.files import load as gpulab_load

    began = time.process_time()
    run = gpulab_load(path)
    return run, {"events": len(run.event_rows), "load_cpu_s": time.process_time() - began}


def basic_figures(run: Run) -> Results:
    """Busy and idle per device and of all, gaps, each step, kernels by name, copies by kind, launch delay."""
    from gpulab.analysis import busy_table, busy_time, copy_table, devices, gap_table, kernel_table, launch_delays
    from gpulab.analysis.steps.detection import find_steps

    run_steps = find_steps(run)
    tables = {
        device: (busy_table(run, device=device), gap_table(run, device, steps=run_steps)) for device in devices(run)
    }
    together, gaps = busy_time(run), gap_table(run, steps=run_steps)
    in_steps = busy_table(run, run_steps)
    kernels, copies, delays = kernel_table(run), copy_table(run), launch_delays(run)
    assert tables, "no device worked"
    assert together is not None
    assert gaps is not None
    assert in_steps is not None
    assert delays is not None
    return {
        "kernels": int(kernels["count"].sum()),
        "idle_frac": together.idle_ns / (together.idle_ns + together.busy_ns),
        "steps": len(in_steps),
        "gaps": len(gaps),
        "copies": int(copies["count"].sum()),
        "delay_us": (delays.median_ns or 0) / 1e3,
    }


if __name__ == "__main__":
    main()
