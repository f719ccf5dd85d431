"""How often is the diagnosis right, and how often does a prediction hold? Planted faults, each in a fresh process.

    python benchmarks/verdicts.py [--runs 10] [--only NAME ...]

For each workload: how often its planted rule came first. For each one starved of data: the fix that the finding
names is applied, and the measured gain is put beside the predicted range and the ceiling.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from statistics import median
from typing import Any

from gpulab.workloads import WORKLOADS, workload

Result = dict[str, Any]  # what one process tells of itself, as JSON carries it


def main() -> None:
    """Run every workload so many times and write the tally."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[each.name for each in WORKLOADS])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.stdout.write(json.dumps(_child(arguments.child)))
        return
    for name in arguments.only:
        results = [_in_fresh_process(name) for _ in range(arguments.runs)]
        sys.stdout.write(_line(name, results) + "\n")
        sys.stdout.flush()


def _in_fresh_process(name: str) -> Result:
    command = [sys.executable, __file__, "--child", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told: Result = json.loads(done.stdout.splitlines()[-1])
    return told


def _child(name: str) -> Result:
    """Profile one workload once; where it starves, apply the fix and profile again."""
    import torch

    import gpulab

    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = workload(name)
    with gpulab.profile("before"):
        chosen.run(device=device)
    diagnosis = gpulab.diagnose(gpulab.runs["before"])
    first = diagnosis.first
    told: Result = {"rule": first.rule if first else None}
    if first is not None and first.rule == chosen.rule == "starving":
        workers = int(first.fix.split("num_workers=")[1].split(",")[0])
        with gpulab.profile("after"):
            chosen.run(device=device, workers=workers)
        seen = gpulab.compare(gpulab.runs["before"], gpulab.runs["after"])
        assert seen.predicted is not None
        told |= {
            "workers": workers,
            "measured": seen.ratio,
            "low": seen.predicted.worst_speedup,
            "high": seen.predicted.best_speedup,
            "ceiling": seen.predicted.bound,
            "inside": seen.inside,
            "beyond": seen.ratio_low > seen.predicted.bound,
        }
    return told


def _line(name: str, results: list[Result]) -> str:
    planted = workload(name).rule
    firsts = Counter(str(result["rule"]) for result in results)
    # A healthy twin is judged right when nothing is said of it beyond how busy the device is.
    accepted = (planted,) if planted else (None, "device_bound")
    right = sum(result["rule"] in accepted for result in results)
    others = ", ".join(f"{rule} {count}" for rule, count in firsts.most_common())
    line = f"{name:20} planted {planted!s:15} right {right}/{len(results)}   first: {others}"
    fixed = [result for result in results if "measured" in result]
    if fixed:
        inside = sum(bool(result["inside"]) for result in fixed)
        beyond = sum(bool(result["beyond"]) for result in fixed)
        line += (
            f"\n{'':20} with {sorted({result['workers'] for result in fixed})} workers: "
            f"measured {_range(fixed, 'measured')}, predicted {_range(fixed, 'low')} to {_range(fixed, 'high')}, "
            f"ceiling {_range(fixed, 'ceiling')}; inside {inside}/{len(fixed)}, beyond the ceiling {beyond}"
        )
    return line


def _range(results: list[Result], key: str) -> str:
    values = [float(result[key]) for result in results]
    return f"{median(values):.2f}x ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
