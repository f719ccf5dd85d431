"""Runs variants of one loop in a fresh process: `python -m benchmarks.wild.child LOOP CHANGE SCALE FILE`.

CHANGE is the name of a change, `unchanged`, or `all` for every variant one after another.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.wild.outcome import Outcome, read_outcomes, run_all_variants, run_variant, write_outcomes
from benchmarks.wild.registry import load_loop

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800


class FailedRunError(RuntimeError):
    """A variant ended with an error or did not end in time."""


def outcomes_in_child(loop_name: str, change_name: str, scale: float) -> dict[str, Outcome]:
    """Run one variant, or `all`, in a process of its own and return the outcomes."""
    with tempfile.TemporaryDirectory(prefix="wild-result-") as folder:
        result = Path(folder) / "outcome.json"
        output = Path(folder) / "output.txt"
        command = [sys.executable, "-m", "benchmarks.wild.child", loop_name, change_name, str(scale), str(result)]
        variant = f"{loop_name} {change_name}"
        with output.open("w") as stream:
            try:
                process = subprocess.run(
                    command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                raise FailedRunError(f"{variant}: no end after {TIMEOUT_S} s") from None
        if process.returncode != 0 or not result.exists():
            tail = output.read_text(errors="replace")[-2000:]
            raise FailedRunError(f"{variant}: exit status {process.returncode}\n{tail}")
        return read_outcomes(result)


def main(arguments: list[str]) -> None:
    """Run what the arguments name."""
    loop_name, change_name, scale, path = arguments
    loop = load_loop(loop_name)
    if change_name == "all":
        outcomes = run_all_variants(loop, float(scale))
    else:
        change = None if change_name == "unchanged" else loop.change(change_name)
        outcomes = {change_name: run_variant(loop, change, float(scale))}
    write_outcomes(outcomes, Path(path))


if __name__ == "__main__":
    main(sys.argv[1:])
