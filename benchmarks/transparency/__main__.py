"""python -m benchmarks.transparency [--traceml PATH]: probes under plain Python, `gpulab run` and `traceml run`.

Each probe is a small program. A launcher is transparent for it if the exit status, stdout, and the last line of stderr
(the exception, if there is one) are those of plain Python. `--traceml`: the command of traceml-ai, if it is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.transparency.probes import PROBES

TIMEOUT_S = 120
ARGUMENTS = ("--lr", "0.1")
NO_RECORDING = "gpulab: nothing was recorded, because the program did not import PyTorch"


class Outcome(NamedTuple):
    """How a program ended, and what it printed."""

    status: int | None  # None: it did not end in time
    stdout: str
    last_error: str


def outcome(folder: Path, command: list[str]) -> Outcome:
    """Run a command in the folder of the probes."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH")))),
    }
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            env=environ,
            input="typed text",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, "", "")
    errors = [line for line in result.stderr.splitlines() if line.strip() and line != NO_RECORDING]
    return Outcome(result.returncode, result.stdout, errors[-1] if errors else "")


def differences(plain: Outcome, launched: Outcome) -> str:
    """Return what differs from plain Python; "same" if nothing does."""
    if launched.status is None:
        return "did not end"
    names = [name for name in Outcome._fields if getattr(plain, name) != getattr(launched, name)]
    return ", ".join(names).replace("_", " ") or "same"


def main() -> None:
    """Run all probes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traceml", type=Path, help="the command of traceml-ai")
    options = parser.parse_args()
    launchers = {"gpulab run": [sys.executable, "-m", "gpulab", "run"]}
    if options.traceml is not None:
        launchers["traceml run"] = [sys.executable, str(options.traceml.resolve()), "run"]
    same = dict.fromkeys(launchers, 0)
    print(" | ".join(("probe", *launchers)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "beside.py").write_text("VALUE = 'beside'\n")
        for index, (probe, source) in enumerate(PROBES.items()):
            script = folder / f"probe{index}.py"
            script.write_text(f"{source}\n", encoding="latin-1" if "latin-1" in source else "utf-8")
            plain = outcome(folder, [sys.executable, script.name, *ARGUMENTS])
            cells = []
            for launcher, command in launchers.items():
                before = ["--args"] if launcher == "traceml run" else []
                cells.append(differences(plain, outcome(folder, [*command, script.name, *before, *ARGUMENTS])))
                same[launcher] += cells[-1] == "same"
            print(" | ".join((probe, *cells)), flush=True)
    print(" | ".join(("the same", *(f"{count} of {len(PROBES)}" for count in same.values()))))


if __name__ == "__main__":
    main()
