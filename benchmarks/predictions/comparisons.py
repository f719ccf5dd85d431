"""How often does a comparison report a difference that does not exist, and how often does it find one that does?

    python benchmarks/predictions/comparisons.py [--pairs 10] [--repeats 7] [--patience 0]

Healthy training loops, live on this machine. "same": both variants are the same loop. "slower": the second takes 10 %
longer per step. Each pair is one `gpulab.experiment` in a fresh process; the variants alternate, A B A B. It is judged
twice: by all its runs, and by the first run of each, as two runs in a notebook would be. Other load on the machine is
printed with each pair; no pair is excluded or recorded again. `--patience 120` waits up to that many seconds before
each pair until other programs leave the cores idle.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

import gpulab  # noqa: E402
from gpulab.comparison import Comparison, compare  # noqa: E402
from gpulab.comparison.sides import choose_basis  # noqa: E402
from gpulab.workloads import workload  # noqa: E402

LOOPS = {"in_one": 60, "tiny_ops": 250, "matmul": 40}  # and how many steps; about 1.5 s of training each
SLOWER = 0.10


def main() -> None:
    """Record, judge, print every pair and the totals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10, help="of each kind")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each variant")
    parser.add_argument("--level", default="sensors", help="sensors (times alone) or trace")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS), help="in_one, tiny_ops: one thread")
    parser.add_argument("--patience", type=float, default=0, help="seconds to wait, at most, until little else runs")
    parser.add_argument("--one", nargs=3, metavar=("LOOP", "STEPS", "SHARE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        loop, steps, share = arguments.one
        print(json.dumps(pair(loop, int(steps), float(share), arguments.repeats, arguments.level)))
        return
    tally: dict[tuple[str, str], int] = {}
    print(f"{arguments.repeats} runs a side, level {arguments.level}; load of this machine {os.getloadavg()[0]:.1f}")
    print("pair          loop      others  ratio (95 % interval), verdict: by all runs     by the first two alone")
    for number in range(arguments.pairs):
        loop = arguments.loops[number % len(arguments.loops)]
        for kind, share in (("same", 0.0), ("slower", SLOWER)):
            verdicts = recorded(loop, LOOPS[loop], share, arguments)
            for runs_used in ("all", "two"):
                right = "slower" if share else "no difference"
                tally[kind, runs_used] = tally.get((kind, runs_used), 0) + (verdicts[runs_used]["verdict"] == right)
            columns = (f"{kind} {number + 1}".ljust(12), loop.ljust(9), f"{verdicts['others']:.1f}".rjust(5))
            print(*columns, verdicts["all"]["words"].ljust(44), verdicts["two"]["words"], flush=True)
    for runs_used, label in (("all", f"{arguments.repeats} runs a side"), ("two", "one run a side")):
        print(
            f"{label}: no difference called {tally['same', runs_used]} of {arguments.pairs}; "
            f"10 % slow-down found {tally['slower', runs_used]} of {arguments.pairs}"
        )


def recorded(loop: str, steps: int, share: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Record one pair in a separate process."""
    until = time.monotonic() + arguments.patience
    while time.monotonic() < until and psutil.cpu_percent(2) > 10:
        pass
    command = [sys.executable, __file__, "--one", loop, str(steps), str(share)]
    command += ["--repeats", str(arguments.repeats), "--level", arguments.level]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    verdicts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return verdicts


def pair(loop: str, steps: int, share: float, repeats: int, level: str) -> dict[str, Any]:
    """Run an experiment and print its verdicts."""
    train = partial(workload(loop).run, steps=steps)

    def after() -> Any:
        with slowed(share):
            return train()

    result = gpulab.experiment(train, after, repeats=repeats, level=level)
    two = compare(result.before[0], result.after[0])
    crowd = [side.other_cores(choose_basis([side], averaged=False)) for side in result.comparison.sides]
    return {"all": judged(result.comparison), "two": judged(two), "others": max(crowd)}


def judged(compared: Comparison) -> dict[str, Any]:
    """The verdict, and the time of a step after as a multiple of that before."""
    interval = f"{1 / compared.ratio_high:.2f}-{1 / compared.ratio_low:.2f}"
    verdict = "no difference" if not compared.above_noise else "slower" if compared.ratio < 1 else "FASTER"
    return {"verdict": verdict, "words": f"{1 / compared.ratio:.3f} ({interval}) {verdict}"}


@contextlib.contextmanager
def slowed(share: float) -> Iterator[None]:
    """Make each step inside longer by this share of its duration."""
    last = time.perf_counter()

    def spin(*_: Any) -> None:
        nonlocal last
        until = time.perf_counter() * (1 + share) - last * share
        while time.perf_counter() < until:
            pass
        last = time.perf_counter()

    if not share:
        yield
        return
    handle = register_optimizer_step_post_hook(spin)
    try:
        yield
    finally:
        handle.remove()


if __name__ == "__main__":
    main()
