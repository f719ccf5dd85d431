"""Run one part of a stage in a process of its own: an error on the GPU, or a part that hangs, costs no other part."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_python(arguments: Sequence[str], limit_s: float, *, hide_gpu: bool = False) -> tuple[str, str]:
    """Run Python with these arguments; return its output, and what went wrong ("" if nothing did)."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if hide_gpu else {}
    environment = {**os.environ, **hidden}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no end after {limit_s:.0f} s"
    problem = "" if done.returncode == 0 else f"exit code {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"
    return done.stdout, problem
