"""Loops beside another program on the same cores: `python -m benchmarks.wild.shared_cores RUNS [LOOP ...]`.

Each loop is recorded beside the other program: with all threads, with one thread, and with all threads again. The mean
of the untraced steps without the longest hundredth tells what one thread really gains; it is compared with what
`shared_cpu` predicts from the first recording.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = {
    "matmul": "import torch\ntorch.set_num_threads(2)\na = torch.randn(512, 512)\nwhile True: a @ a",
    "sort": "import numpy\nwhile True: numpy.sort(numpy.random.rand(200_000))",
    "python": "while True: sum(range(10_000))",
}
LOOPS = ("science/ecg_auroc", "recsys/gru4rec", "rl/ppo", "science/deeponet", "vision/unet", "tabular/mlp_regressor")
TIMEOUT_S = 300
MIN_STEPS = 5


@contextlib.contextmanager
def beside(program: str) -> Iterator[None]:
    """Run another program meanwhile."""
    with subprocess.Popen([sys.executable, "-c", OTHERS[program]]) as other:
        time.sleep(3)  # it imports first
        try:
            yield
        finally:
            other.kill()


def record(name: str, path: Path, threads: int | None) -> bool:
    """Record a loop in a process of its own; return whether it ended."""
    command = [sys.executable, "-m", "benchmarks.wild.diagnose", "--record", name, str(path)]
    limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    environment = {**os.environ, "GPULAB_HISTORY": "off", **limits}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
        return done.returncode == 0
    return False


def mean_step_ms(path: Path) -> float | None:
    """Return the mean of the untraced steps without the longest hundredth; None if there are too few."""
    import gpulab
    from gpulab.analysis.machine.core_sharing import usual_mean_ns
    from gpulab.analysis.steps.detection import burst_means, find_steps

    steps = find_steps(gpulab.load(path))
    step_ns = burst_means(steps.dur_ns[steps.unprofiled], steps.burst)
    if len(step_ns) < MIN_STEPS:
        return None
    return usual_mean_ns(step_ns) / 1e6


def row_of(name: str, folder: Path) -> str:
    """Return a row of the table: measured and predicted gains of one thread."""
    import gpulab
    from gpulab.rules import diagnose

    paths = [folder / f"{name.replace('/', '_')}.{which}.gpulab" for which in ("first", "one", "second")]
    for path, threads in zip(paths, (None, 1, None), strict=True):
        if not path.exists() and not record(name, path, threads):
            return f"| {name} | did not end |"
    first_ms, one_ms, second_ms = (mean_step_ms(path) for path in paths)
    diagnosis = diagnose(gpulab.load(paths[0]))
    finding = next((each for each in diagnosis.findings if each.rule == "shared_cpu"), None)
    gain = finding.gain if finding else None
    predicted = f"{gain.worst_speedup:.2f}x to {gain.best_speedup:.2f}x | {gain.bound:.0f}x" if gain else "- | -"
    if first_ms is None or one_ms is None or second_ms is None:
        return f"| {name} | too few steps |"
    measured = (
        f"{first_ms:.1f} and {second_ms:.1f} | {one_ms:.1f} | {first_ms / one_ms:.2f}x, {second_ms / one_ms:.2f}x"
    )
    return f"| {name} | {measured} | {diagnosis.first.rule if diagnosis.first else 'none'} | {predicted} |"


def main() -> None:
    """Print a table, one row for each loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a folder; recordings in it are read and not made again")
    parser.add_argument("loops", nargs="*", metavar="LOOP", help="of the wild corpus; six are the default")
    parser.add_argument("--beside", choices=OTHERS, default="matmul", help="the other program")
    options = parser.parse_intermixed_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    print("| loop | all threads, ms | one thread, ms | measured | first finding | predicted | bound |")
    print("|---|---|---:|---|---|---|---:|")
    with beside(options.beside):
        for name in options.loops or LOOPS:
            print(row_of(name, options.runs), flush=True)


if __name__ == "__main__":
    main()
