"""What a long recording costs: memory beyond that of the plain program, and how long the loop waits for gpulab.

    python benchmarks/endurance.py [epochs operators steps] [--scale 0.1]

Each loop runs in a process of its own, plain and recorded:

    epochs     1,000 epochs of a DataLoader with two workers, as in an hour of training on a small dataset
    operators  10 million operators in steps of 250,000
    steps      5 million steps

Memory is the growth of the resident set from the start of the loop to its end. A hold is a time in which the loop did
nothing; a loop that is interrupted by other programs has some, too, so compare with the plain run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

LOOPS = ("epochs", "operators", "steps")
BINS_S = (0.01, 0.03, 0.1, 0.3, 1.0)
MB = 1e6


class Holds:
    """Counts of times between two visits, by length."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BINS_S) + 1)
        self.longest_s = 0.0
        self._last_s = time.perf_counter()

    def visit(self) -> None:
        """Note that the loop is running."""
        now_s = time.perf_counter()
        passed_s, self._last_s = now_s - self._last_s, now_s
        if passed_s >= BINS_S[0]:
            self.counts[sum(passed_s >= limit for limit in BINS_S)] += 1
            self.longest_s = max(self.longest_s, passed_s)


def epochs(scale: float, holds: Holds) -> int:
    """Many short epochs; workers start once in each."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
    count = round(1000 * scale)
    for _ in range(count):
        for batch in loader:
            batch[0].sum()
        holds.visit()
    return count


def operators(scale: float, holds: Holds) -> int:
    """Few steps with very many operators each."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    tensor = torch.ones(4)
    count = round(10_000_000 * scale)
    for _ in DataLoader(TensorDataset(torch.zeros(max(1, count // 250_000))), batch_size=1):
        for index in range(250_000):
            tensor.add_(1)
            if not index % 64:
                holds.visit()
    return count


def steps(scale: float, holds: Holds) -> int:
    """Very many steps."""
    import gpulab

    count = round(5_000_000 * scale)
    for index in range(count):
        gpulab.step()
        if not index % 64:
            holds.visit()
    return count


def run_loop(name: str, level: str, scale: float) -> dict[str, Any]:
    """Run one loop in this process; return its figures."""
    import psutil
    import torch

    from gpulab.capture.profiler import warm_up

    torch.set_num_threads(1)
    loop: Callable[[float, Holds], int] = globals()[name]
    loop(0.0005, Holds())
    warm_up()
    process = psutil.Process()
    before = process.memory_info().rss
    with _recording(level) as session:
        began_s = time.perf_counter()
        holds = Holds()
        count = loop(scale, holds)
        loop_s = time.perf_counter() - began_s
        in_loop = process.memory_info().rss - before
    after = process.memory_info().rss - before
    recorded = None if session is None else [len(session.run.event_rows), len(session.run.mark_rows)]
    return {
        "count": count,
        "loop_s": loop_s,
        "in_loop_mb": in_loop / MB,
        "after_mb": after / MB,
        "holds": holds.counts[1:],
        "longest_s": holds.longest_s,
        "threads": process.num_threads(),
        "children": len(process.children()),
        "recorded": recorded,
    }


@contextlib.contextmanager
def _recording(level: str) -> Iterator[Any]:
    import gpulab

    if level == "plain":
        yield None
    else:
        with gpulab.profile("endurance", level=level) as session:
            yield session


def main() -> None:
    """Print a table of the loops, plain and recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", nargs="*", metavar="LOOP", help=", ".join(LOOPS))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full length")
    parser.add_argument("--one", nargs=2, metavar=("LOOP", "LEVEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_loop(options.one[0], options.one[1], options.scale)))
        return
    limits = " | ".join(f">= {limit:g} s" for limit in BINS_S)
    print(f"| loop | level | length | seconds | memory at end of loop | after reading | longest hold | {limits} |")
    print("|---|---|---:|---:|---:|---:|---:" + "|---:" * len(BINS_S) + "|")
    for loop in options.loops or LOOPS:
        for level in ("plain", "sensors", "trace"):
            command = [sys.executable, __file__, "--one", loop, level, "--scale", str(options.scale)]
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            row = json.loads(result.stdout.strip().splitlines()[-1])
            holds = " | ".join(map(str, row["holds"]))
            print(
                f"| {loop} | {level} | {row['count']:,} | {row['loop_s']:.1f} | {row['in_loop_mb']:+.0f} MB |"
                f" {row['after_mb']:+.0f} MB | {row['longest_s']:.3f} s | {holds} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
