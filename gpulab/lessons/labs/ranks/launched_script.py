"""Run a training script as a shell would: with python, or with torchrun, which starts its ranks."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab.errors import GpulabError
from gpulab.wording import duration

TIMEOUT_S = 120
_OF_A_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class ScriptLaunch:
    """What became of a command; `ranks`: what each rank saved as rankN.json; `error`: its last line, if it failed."""

    exit_code: int
    ranks: tuple[dict[str, Any], ...]
    error: str


def run_in_folder(command: str, script: str, timeout_s: float = TIMEOUT_S) -> ScriptLaunch:
    """Write a script as train.py into a temporary folder, run a command there, and return what the ranks saved.

    `python` is this Python, and `torchrun` that of its PyTorch, also if neither is on the path. Raises GpulabError for
    any other program, and if the command does not end in time.
    """
    programs = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
    program, *arguments = shlex.split(command) or [""]
    if program not in programs:
        raise GpulabError(
            f"{program!r} is not started here.",
            why="the command starts a training script",
            fix="begin the command with python or torchrun",
        )
    # One thread per rank, no GPU, nothing from a launcher of this process; PET_LOCAL_ADDR is torchrun's --local-addr:
    # the name of a laptop often has no address.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PET_LOCAL_ADDR": "localhost"}
    with tempfile.TemporaryDirectory(prefix="gpulab-script-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "train.py").write_text(script, encoding="utf-8")
        try:
            done = subprocess.run(
                [*programs[program], *arguments],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise GpulabError(
                f"{command!r} did not end within {duration(1e9 * timeout_s)}.",
                why="a rank waits for another one, or the machine is very busy",
                fix="check the number of processes, and run the cell again",
            ) from error
        files = sorted(folder.glob("rank*.json"), key=lambda path: int(path.stem.removeprefix("rank")))
        ranks = tuple(json.loads(path.read_text(encoding="utf-8")) for path in files)
    return ScriptLaunch(done.returncode, ranks, "" if done.returncode == 0 else last_error(done.stderr))


def last_error(text: str) -> str:
    """Return the last line of an error output that names an exception, an option or a file, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    messages = [line for line in lines if any(mark in line for mark in ("Error: ", "error: ", "can't open file"))]
    return (messages or lines or [""])[-1]
