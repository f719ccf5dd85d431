"""python -m benchmarks.gate [--trials 10] [--runs 7]: how often the performance test for CI passes or fails rightly.

Each trial records the program and its slower variant with `gpulab run`, in turn, and judges them with `gpulab compare
--fail-over 5%`, as a workflow does: the program against other recordings of itself must pass, against the variant with
a tenth more blocks it must fail. Prints a row per trial.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
BLOCKS = 20
TIMEOUT_S = 300
LIMIT = "5%"
SIDES = {"before": BLOCKS, "equal": BLOCKS, "slower": BLOCKS + BLOCKS // 10}


def gpulab(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a gpulab command and return what it gave."""
    command = (sys.executable, "-m", "gpulab", *map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def record(folder: Path, runs: int) -> dict[str, list[Path]]:
    """Record every side as often as asked, in turn, so that a slow minute of the machine slows all of them."""
    recorded: dict[str, list[Path]] = {side: [] for side in SIDES}
    for number in range(runs):
        for side, blocks in SIDES.items():
            out = folder / f"{side}-{number}"
            gpulab("run", "--quiet", "--out", out, PROGRAM, "--blocks", str(blocks)).check_returncode()
            recorded[side].append(out / "run.gpulab")
    return recorded


def verdict(before: Sequence[Path], after: Sequence[Path]) -> tuple[int, str]:
    """Return the exit status of the comparison, and the line with its verdict."""
    sides = (",".join(map(str, side)) for side in (before, after))
    result = gpulab("compare", *sides, "--fail-over", LIMIT)
    if result.returncode not in (0, 1):
        raise SystemExit(f"gpulab compare failed:\n{result.stderr}")
    lines = (result.stdout + result.stderr).splitlines()
    return result.returncode, next(line for line in lines if line.startswith(("PASS", "FAIL")))


def main() -> None:
    """Run all trials and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--runs", type=int, default=7, help="recordings per side")
    options = parser.parse_args()
    passed = failed = 0
    for number in range(options.trials):
        with tempfile.TemporaryDirectory() as folder:
            recorded = record(Path(folder), options.runs)
            equal, text_of_equal = verdict(recorded["before"], recorded["equal"])
            slower, text_of_slower = verdict(recorded["before"], recorded["slower"])
        passed += equal == 0
        failed += slower == 1
        print(f"{number + 1}  equal: {text_of_equal}\n   slower: {text_of_slower}", flush=True)
    print(f"equal code passes in {passed} of {options.trials}; 10 % more work fails in {failed} of {options.trials}")


if __name__ == "__main__":
    main()
