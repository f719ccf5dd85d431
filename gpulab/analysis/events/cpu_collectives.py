"""Collectives of a CPU backend (gloo, MPI): recorded as ranges on the backend's threads, from arrival to the end."""

from __future__ import annotations

import re

import numpy as np

from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

_NAME = re.compile(r"(gloo|mpi|ucc):")


def cpu_collective_rows(run: Run) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the event rows of the collectives of CPU backends, in order of their start."""
    events = run.event_rows
    rows = np.flatnonzero(events.is_kind(EventKind.ANNOTATION, EventKind.OP) & events.matching(_is_collective))
    return rows[np.argsort(events["start_ns"][rows], kind="stable")]


def cpu_collectives(run: Run) -> Rows:
    """Return the same as rows."""
    return run.event_rows.select(cpu_collective_rows(run))


def _is_collective(name: str) -> bool:
    return _NAME.match(name) is not None
