"""How much GPU memory each phase of a step gives out at most: forward, backward, optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps import Steps
from gpulab.intervals import Spans, merged
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

PHASES = ("forward", "backward", "optimizer")


def phase_peaks(run: Run, steps: Steps, device: int) -> dict[str, int]:
    """The most that was given out in each phase of the recorded steps; empty where memory was not recorded."""
    rows = run.memory_rows
    told = (rows["device"] == device) & (rows["allocated_bytes"] >= 0)
    rows = rows.where(told)
    if not len(rows):
        return {}
    optimizer, backward = _ranges(run, "Optimizer.step#"), _ranges(run, "autograd::engine::evaluate_function")
    within = {"optimizer": _within(rows, optimizer), "backward": _within(rows, backward)}
    within["backward"] &= ~within["optimizer"]
    within["forward"] = ~within["optimizer"] & ~within["backward"] & _within(rows, _steps(run, steps))
    peaks = {phase: rows["allocated_bytes"][within[phase]] for phase in PHASES}
    return {phase: int(values.max()) for phase, values in peaks.items() if len(values)}


def _ranges(run: Run, prefix: str) -> Spans:
    events = run.event_rows.of_kind(Kind.OP, Kind.ANNOTATION)
    names = events.words("name")
    return events.where(names.matching(word.startswith(prefix) for word in names.vocabulary)).spans()


def _steps(run: Run, steps: Steps) -> Spans:
    """Where a step is under way, or what was recorded where none was completed: a first step that fails is one."""
    windows = np.array(run.recording.windows_ns, np.int64).reshape(-1, 2)
    return merged(Spans(steps.start_ns, steps.end_ns), Spans(windows[:, 0], windows[:, 1]))


def _within(rows: Rows, spans: Spans) -> NDArray[np.bool_]:
    if not len(spans.start_ns):
        return np.zeros(len(rows), bool)
    index = np.searchsorted(spans.start_ns, rows["at_ns"], side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (rows["at_ns"] < spans.end_ns[np.maximum(index, 0)])
    return inside
