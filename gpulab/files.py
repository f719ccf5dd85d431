"""Runs from disk and to disk, whatever kind of file it is."""

from __future__ import annotations

from pathlib import Path

from gpulab import store, trace
from gpulab.errors import TraceError
from gpulab.run import Run


def load(path: str | Path) -> Run:
    """A run from a `.gpulab` file or a trace of PyTorch's profiler (.json, .json.gz), told apart by content.

    A damaged trace gives the part that can be read, and `run.recording.lost` says what could not. Raises TraceError
    or StoreError where nothing can be read.
    """
    path = Path(path)
    if not path.exists():
        raise TraceError(
            f"There is no file {str(path)!r}.",
            why="the path does not exist",
            fix=f"check the path; relative ones start from {Path.cwd()}",
        )
    if store.is_run(path):
        return store.open(path)
    return trace.read(path)


def save(run: Run, path: str | Path) -> Path:
    """Write a run to one `.gpulab` file, whole or not at all; gives the path. Raises StoreError where it cannot."""
    return store.save(run, path)
