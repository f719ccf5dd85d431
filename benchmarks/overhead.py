"""Measure the overhead of recording: ratios of the wall times of one cell, in alternating runs in one process.

    python benchmarks/overhead.py [--pairs 9]

The cell is the worst case for a profiler: many small operators per step, on one thread. The last figure is the delay
between the end of the cell's own code and the report, with the number of recorded events.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from torch.profiler import ProfilerActivity, profile

import gpulab
from gpulab import trace
from gpulab.wording import percent

CELL = """
import time
import torch
_began = time.perf_counter(), time.process_time(), time.thread_time()
for _ in range({steps}):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), inputs).backward()
    optimizer.step()
spent_s = time.perf_counter() - _began[0]
cpu_s = time.process_time() - _began[1]
other_threads_s = cpu_s - (time.thread_time() - _began[2])
"""


def main() -> None:
    """Measure and print each ratio with its bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    shell = prepared()
    cell = CELL.format(steps=1000)

    def run_plain() -> None:
        shell.run_cell(cell).raise_error()

    def recorded() -> None:
        run_magic(shell, "%%gpuprofile recorded", cell)

    def sensed() -> None:
        run_magic(shell, "%%gpuprofile sensed --level sensors", cell)

    def own_s(run: Callable[[], None]) -> float:
        run()
        return float(shell.user_ns["spent_s"])

    def own_cpu_s(run: Callable[[], None]) -> float:
        run()
        return float(shell.user_ns["cpu_s"])

    if os.getloadavg()[0] > 0.5:
        print("Other programs are running: ratios of wall times will vary widely, those of CPU time less.")
    print(f"{pairs} pairs each: median ratio, its middle half, the bound")
    tell("%%gpuprofile to bare torch.profiler, all in", 1.05, pairs, recorded, lambda: profiled(run_plain), wall_s)
    tell("--level sensors to nothing, the cell's own code", 1.02, 2 * pairs, sensed, run_plain, own_s)
    tell("--level sensors to nothing, its CPU time", 1.02, 2 * pairs, sensed, run_plain, own_cpu_s)
    tell("nothing to nothing, CPU time: the noise", None, 2 * pairs, run_plain, run_plain, own_cpu_s)
    print(f"{'--level sensors: CPU time of its own thread':50} {percent(own_thread_frac(shell, sensed))} of a core")
    tell("%%gpuprofile to nothing, the cell's own code", None, pairs, recorded, run_plain, own_s)
    waits = [wall_s(recorded) - float(shell.user_ns["spent_s"]) for _ in range(3)]
    events = len(gpulab.runs["recorded"].event_rows)
    print(f"{'report shown after the last line of the cell':50} {median(waits):.2f} s for {events:,} events, bound 2 s")
    by_file, by_object, count = zip(*(opened(run_plain) for _ in range(3)), strict=True)
    ratio = median(one / other for one, other in zip(by_file, by_object, strict=True))
    ratio_text = f"{ratio:.2f}x  ({median(by_file):.2f} s and {median(by_object):.2f} s for {count[0]:,} events)"
    print(f"{'a profile read by its file to by its objects':50} {ratio_text}")


def prepared() -> InteractiveShell:
    """Return a warm shell with gpulab loaded and a model of many small operators."""
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpulab")
    layers = [layer for _ in range(12) for layer in (torch.nn.Linear(128, 128), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    shell.push({"model": model, "optimizer": optimizer, "inputs": torch.randn(64, 128)})
    short = CELL.format(steps=20)
    run_magic(shell, "%%gpuprofile warm", short)
    profiled(lambda: shell.run_cell(short).raise_error())
    return shell


def run_magic(shell: InteractiveShell, line: str, cell: str) -> None:
    """Run the cell under a magic without displaying its report."""
    with capture_output():
        shell.run_cell(f"{line}\n{cell}").raise_error()


def profiled(run: Callable[[], None]) -> None:
    """Run under torch.profiler alone, with the options gpulab uses, from start to stop."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities):
        run()


def opened(run: Callable[[], None]) -> tuple[float, float, int]:
    """Seconds from a stopped profiler to a run by way of its JSON, and to half of a run's columns by its objects."""
    with profile(activities=[ProfilerActivity.CPU]) as stopped:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        began = time.perf_counter()
        stopped.export_chrome_trace(str(path))
        events = len(trace.read(path).event_rows)
        by_file = time.perf_counter() - began
    began = time.perf_counter()
    rows = [
        (event.name(), event.start_ns(), event.duration_ns(), event.start_thread_id(), event.correlation_id())
        for event in stopped.profiler.kineto_results.events()
    ]
    for column in zip(*rows, strict=True):
        np.array(column)
    return by_file, time.perf_counter() - began, events


def tell(
    what: str,
    bound: float | None,
    pairs: int,
    one: Callable[[], None],
    other: Callable[[], None],
    seconds: Callable[[Callable[[], None]], float],
) -> None:
    """Print the median ratio of two variants, run alternately, with its spread; the first of a pair alternates, too."""
    ratios = []
    for number in range(pairs):
        first, second = (seconds(run) for run in ((one, other) if number % 2 else (other, one)))
        ratios.append(first / second if number % 2 else second / first)
    ratios.sort()
    middle = f"{ratios[pairs // 4]:.3f}-{ratios[-1 - pairs // 4]:.3f}"
    print(f"{what:50} {median(ratios):.3f}x  ({middle}){f'  {bound:.2f}' if bound else ''}", flush=True)


def wall_s(run: Callable[[], None]) -> float:
    """Return the wall time, report included."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def own_thread_frac(shell: InteractiveShell, sensed: Callable[[], None]) -> float:
    """Return the median CPU time of the sampler's thread as a share of the cell; the model has one thread."""
    shares = []
    for _ in range(5):
        sensed()
        shares.append(float(shell.user_ns["other_threads_s"]) / float(shell.user_ns["spent_s"]))
    return median(shares)


if __name__ == "__main__":
    main()
