"""Run a program in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(folder: Path, source: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this source in the folder; `options`: of Python, such as "-m", "gpulab", "run"."""
    (folder / "program.py").write_text(source)
    return subprocess.run(
        [sys.executable, *options, "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GPULAB_SPOOL": "off", **environ},
        capture_output=True,
        text=True,
        timeout=170,
    )
