"""How much GPU memory each phase of a step gives out at most: forward, backward, optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints, Spans, covered_ns, merged
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

PHASES = ("forward", "backward", "optimizer")


FORWARD, BACKWARD, OPTIMIZER = range(3)  # places in PHASES
JUST_BEFORE_NS = 100_000  # between asking for memory and the operator that it is for
_TOLD_BY = ((BACKWARD, "autograd::engine::evaluate_function"), (OPTIMIZER, "Optimizer.step#"))


def phase_peaks(run: Run, steps: Steps, device: int) -> dict[str, int]:
    """The most that was given out in each phase of the recorded steps; empty where memory was not recorded."""
    rows = run.memory_rows
    told = (rows["device"] == device) & (rows["allocated_bytes"] >= 0)
    rows = rows.where(told)
    if not len(rows):
        return {}
    phase, inside = phase_of(run, rows["at_ns"]), _within(rows, _steps(run, steps))
    within = [(phase == place) & (inside | (place != FORWARD)) for place in range(len(PHASES))]
    peaks = {name: rows["allocated_bytes"][mine] for name, mine in zip(PHASES, within, strict=True)}
    return {name: int(values.max()) for name, values in peaks.items() if len(values)}


def phase_of(run: Run, at_ns: Ints) -> NDArray[np.int64]:
    """In which phase moments lie, as places in PHASES: that of the operator that runs then, or begins at once.

    Memory is asked for just before an operator begins as often as within it.
    """
    events = run.event_rows.of_kind(Kind.OP, Kind.ANNOTATION)
    names = events.words("name")
    ops = events.of_kind(Kind.OP)
    begins = np.sort(ops["start_ns"])
    following = np.searchsorted(begins, at_ns)
    moments = np.concatenate([at_ns, begins[np.minimum(following, len(begins) - 1)] if len(begins) else at_ns])
    phase = np.full(len(moments), FORWARD, np.int64)
    for place, prefix in _TOLD_BY:
        spans = events.where(names.matching(word.startswith(prefix) for word in names.vocabulary)).spans()
        phase[covered_ns(spans, moments, moments + 1) > 0] = place
    now, then = phase[: len(at_ns)], phase[len(at_ns) :]
    runs = covered_ns(ops.spans(), at_ns, at_ns + 1) > 0
    soon = moments[len(at_ns) :] - at_ns <= JUST_BEFORE_NS
    return np.where((now == FORWARD) & ~runs & (following < len(begins)) & soon, then, now)


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
