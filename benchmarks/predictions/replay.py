"""Accuracy and speed of the replay, for the given traces or all of GPULAB_SHARED.

    python benchmarks/predictions/replay.py [TRACE ...]

*error*: of an unchanged replay, relative to the recording; *usual*: the same with one usual delay for all device work
instead of each event's own; *unexplained*: share of the time in which device work was idle for no recorded reason.
*build*: from a loaded run to its graph; *sweep*: one scenario; *draws*: a range of a hundred scenarios (the median of
five, five and one). The last column is the reason why a run is refused.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import gpulab  # noqa: E402
from gpulab.analysis.steps.detection import find_steps  # noqa: E402
from gpulab.analysis.steps.ledger import build_ledger  # noqa: E402
from gpulab.replay.graph.build import build_graph  # noqa: E402
from gpulab.replay.parsing import parse_changes  # noqa: E402
from gpulab.replay.prediction import build_replay_model, predict  # noqa: E402
from gpulab.replay.quality import Quality  # noqa: E402
from gpulab.replay.sweep import sweep  # noqa: E402

HEADER = "| trace | events | error | usual | unexplained | build | sweep | draws | refused |"


def main() -> None:
    """Print one row per trace."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="*", type=Path)
    arguments = parser.parse_args()
    shared = Path(os.environ.get("GPULAB_SHARED", ROOT.parent / "shared"))
    lines = [HEADER, "|---|" + "---:|" * 7 + "---|"]
    lines += [_row(path) for path in arguments.traces or sorted((shared / "traces").glob("*.json.gz"))]
    sys.stdout.write("\n".join(lines) + "\n")


def _row(path: Path) -> str:
    run = gpulab.load(path)
    run_steps = find_steps(run)
    accounts = build_ledger(run, run_steps)
    if accounts is None:
        return f"| {path.name} | {len(run.event_rows):,} | | | | | | | no step was recorded |"
    graph, build_s = _timed(lambda: build_graph(run, run_steps, accounts), 5)
    _, sweep_s = _timed(lambda: sweep(graph), 5)
    replay_quality = Quality.of(graph)
    draws = ""
    if replay_quality.refusal_reason is None:
        ready = build_replay_model(run, run_steps, accounts)
        change = parse_changes("instant_gpu" if graph.on_gpu else "free_input")
        if change[0].rewrite.refusal_reason(ready.graph, True) is None:
            draws = f"{_timed(lambda: predict(ready, change), 1)[1]:.2f} s"
    errors = (replay_quality.replay_error, replay_quality.generic_error, replay_quality.unexplained_frac)
    figures = " | ".join(f"{100 * error:+.2f} %" for error in errors[:2])
    times = f"{1e3 * build_s:.0f} ms | {1e3 * sweep_s:.1f} ms | {draws}"
    name, reason = path.name.removesuffix(".json.gz"), replay_quality.refusal_reason or ""
    return f"| {name} | {len(run.event_rows):,} | {figures} | {100 * errors[2]:.1f} % | {times} | {reason} |"


def _timed(act: Callable[[], Any], rounds: int) -> tuple[Any, float]:
    took, result = [], None
    for _ in range(rounds):
        began = time.perf_counter()
        result = act()
        took.append(time.perf_counter() - began)
    return result, statistics.median(took)


if __name__ == "__main__":
    main()
