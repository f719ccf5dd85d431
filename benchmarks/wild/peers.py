"""Ask another tool about the open loops: `python -m benchmarks.wild.peers` (pip install gpuprof==0.7.1 psutil).

gpuprof needs no change of a loop: `with gpuprof.profile(): ...` patches PyTorch. Its first insight of the highest
severity is compared with the fastest change of the table in docs/accuracy.md. An insight counts as right if it may be
read as advice for this change; where nothing helps, no insight or one of low severity is right.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.wild.loop import WARM_SCALE, prepared_cell
from benchmarks.wild.outcome import run_once
from benchmarks.wild.registry import load_loop

ROOT = Path(__file__).parents[2]
TRUTH = ROOT / "docs" / "accuracy.md"
TIMEOUT_S = 300
SEVERITIES = ("high", "medium", "low")
COST = "Estimated cost"  # an insight that says nothing about the cause
_DATA = {"num_workers", "persistent_workers", "batch_whole", "vectorize_items", "cache_items", "storage_format"}
_CALLS = {"remove_python", "batch_whole", "larger_batch", "fewer_logs", "compile", "foreach_optimizer", "kv_cache"}
# What the advice of an insight may mean, by a word of its title.
ADVICE = {
    "loader": _DATA,
    "Dataloader": _DATA,
    "prefetch": _DATA,
    "unaccounted": _CALLS,
    "First step": {"compile", "static_shapes"},
    "backward/forward": {"checkpointing_off"},
    "unfused": {"sdpa"},
    "MFU": {"precision", "larger_batch", "compile"},
    "arithmetic intensity": {"larger_batch"},
    "variance": {"padding", "fewer_logs", "gc", "static_shapes"},
}


def fastest_changes(path: Path) -> dict[str, str]:
    """Return the fastest change of each loop, "nothing" without one, as the table in the documentation says."""
    row = r"^\| (\w+/\w+) \| (\w+)(?: [\d.]+x)? \|.*\| (?:yes|no) \| (?:yes|no) \|$"
    return dict(re.findall(row, path.read_text(encoding="utf-8"), re.MULTILINE))


def insights(name: str) -> list[dict[str, Any]]:
    """Run the loop of this name under gpuprof in this process; return its insights, the most severe ones first."""
    import gpuprof
    from gpuprof.insights import analyze

    loop = load_loop(name)
    if loop.warm:
        run_once(loop, None, WARM_SCALE)
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "gpuprof.db")
        with prepared_cell(loop) as (code, namespace), gpuprof.profile(name, db_path=database, summary=False) as prof:
            exec(code, namespace)
        answers = [each for each in analyze(database, prof._run_id)["insights"] if not each["title"].startswith(COST)]
    return sorted(answers, key=lambda each: SEVERITIES.index(each["severity"]))


def is_right(first: dict[str, Any] | None, change: str) -> bool:
    """Whether the first insight may be read as advice for this change."""
    if change == "nothing":
        return first is None or first["severity"] == "low"
    return first is not None and any(word in first["title"] and change in kinds for word, kinds in ADVICE.items())


def main() -> None:
    """Print a table, one row for each loop, and how often the first insight is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", metavar="LOOP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(insights(options.one)))
        return
    print("| loop | fastest change | first insight | severity | right |\n|---|---|---|---|---|")
    right = count = 0
    for name, change in fastest_changes(TRUTH).items():
        command = [sys.executable, "-m", "benchmarks.wild.peers", "--one", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        lines = done.stdout.strip().splitlines()
        answers = json.loads(lines[-1]) if done.returncode == 0 and lines else []
        first = answers[0] if answers else None
        verdict = is_right(first, change)
        right, count = right + verdict, count + 1
        failed = f"exit status {done.returncode}" if done.returncode else "none"
        title, severity = (first["title"], first["severity"]) if first else (failed, "-")
        print(f"| {name} | {change} | {title} | {severity} | {'yes' if verdict else 'no'} |", flush=True)
    print(f"\nright: {right} of {count}")


if __name__ == "__main__":
    main()
