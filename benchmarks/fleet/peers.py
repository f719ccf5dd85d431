"""gpulab.fleet beside HolisticTraceAnalysis on the same files: time, memory, and the figures that both compute.

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis
    python -m benchmarks.fleet.peers FOLDER --hta hta/bin/python --ranks 8 64

Figures cover the time from the first GPU work of a rank to the last: idle time, compute kernels, all other work, and
the share of communication that kernels overlap. Printed is the largest difference over the ranks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.fleet.processes import Watch
from benchmarks.fleet.scaling import chosen
from gpulab.fleet import Fleet, fleet
from gpulab.fleet.rank_summary import RankSummary

LIMIT_S = 900
HEADER = """| ranks | tool | time | CPU time | memory, all processes | straggler | largest difference |
|---:|---|---:|---:|---:|---|---|"""


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hta", type=Path, required=True, help="Python of an environment with HolisticTraceAnalysis")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--straggler", type=int, default=37)
    given = parser.parse_args()
    print(HEADER)
    for ranks in given.ranks:
        files = chosen(sorted(given.folder.glob("rank_*.json.gz")), ranks, given.straggler)
        with Watch() as ours:
            result = fleet([*files], progress=False)
        late = str(result.straggler.late_rank) if result.straggler else "none"
        print(row(ranks, "gpulab.fleet", ours, late, ""), flush=True)
        with Watch() as theirs:
            answer = analysed_by_hta(given.hta, files)
        name = "HolisticTraceAnalysis"
        if isinstance(answer, str):
            print(row(ranks, name, theirs, answer, ""), flush=True)
            continue
        print(row(ranks, name, theirs, str(answer["stragglers"]), differences(result, answer)))
        times, sizes = theirs.cpu_s / ours.cpu_s, theirs.total_peak_bytes / ours.total_peak_bytes
        print(f"\n{times:.1f}x the CPU time, {sizes:.1f}x the memory\n", flush=True)


def row(ranks: int, tool: str, watch: Watch, straggler: str, difference: str) -> str:
    """Return a row of the table."""
    size = f"{watch.total_peak_bytes / 1e6:,.0f} MB"
    return f"| {ranks} | {tool} | {watch.wall_s:.1f} s | {watch.cpu_s:.1f} s | {size} | {straggler} | {difference} |"


def analysed_by_hta(python: Path, files: list[Path]) -> dict[str, Any] | str:
    """Return the figures of HolisticTraceAnalysis, or why there are none."""
    command = [str(python), str(Path(__file__).with_name("hta_child.py")), *map(str, files)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished after {LIMIT_S} s"
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else done.returncode}"
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def differences(result: Fleet, answer: dict[str, Any]) -> str:
    """Return the largest difference of each figure over the ranks, as a share of the window."""
    largest: dict[str, float] = {}
    for summary in result.ranks:
        theirs, ours = answer["ranks"][str(summary.rank)], figures(summary)
        window_ns = summary.device_time.window_ns if summary.device_time else 1
        for name, value in ours.items():
            scale = 1 if name.endswith("_frac") else window_ns
            largest[name] = max(largest.get(name, 0.0), abs(theirs[name] - value) / scale)
    values = figures(result.ranks[0])
    return ", ".join(
        f"{name} {100 * value:.2f} % (rank {result.ranks[0].rank}: {shown(name, values[name])})"
        for name, value in largest.items()
    )


def figures(summary: RankSummary) -> dict[str, float]:
    """Return the same figures from the summary of a rank."""
    times = summary.device_time
    if times is None:
        return {}
    return {
        "idle_ns": times.window_ns - times.busy_ns,
        "compute_ns": times.kernels_ns,
        "other_ns": times.busy_ns - times.kernels_ns,
        "overlap_frac": 1 - times.exposed_communication_ns / max(1, times.communication_ns),
    }


def shown(name: str, value: float) -> str:
    """Return a figure with its unit."""
    return f"{100 * value:.1f} %" if name.endswith("_frac") else f"{value / 1e6:.1f} ms"


if __name__ == "__main__":
    main()
