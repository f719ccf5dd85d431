"""Peak GPU memory by phase of a step: forward, backward, optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints, Spans, covered_ns, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

PHASES = ("forward", "backward", "optimizer")


FORWARD, BACKWARD, OPTIMIZER = range(3)  # indices into PHASES
JUST_BEFORE_NS = 100_000  # maximum time between an allocation and the start of its operator
_PHASE_PREFIXES = ((BACKWARD, "autograd::engine::evaluate_function"), (OPTIMIZER, "Optimizer.step#"))


def phase_peaks(run: Run, steps: Steps, device: int) -> dict[str, int]:
    """Return the peak of allocated memory by phase of the recorded steps; empty without memory events."""
    rows = run.memory_rows
    is_known = (rows["device"] == device) & (rows["allocated_bytes"] >= 0)
    rows = rows.select(is_known)
    if not len(rows):
        return {}
    phase, in_step = phase_of(run, rows["at_ns"]), _mask_in(rows, _step_time(run, steps))
    masks = [(phase == index) & (in_step | (index != FORWARD)) for index in range(len(PHASES))]
    peaks = {name: rows["allocated_bytes"][mask] for name, mask in zip(PHASES, masks, strict=True)}
    return {name: int(values.max()) for name, values in peaks.items() if len(values)}


def phase_of(run: Run, at_ns: Ints) -> NDArray[np.int64]:
    """Return the phase of each time, an index into PHASES: that of the operator that runs, or starts right after.

    Memory is allocated inside an operator or just before it starts.
    """
    events = run.event_rows.of_kind(EventKind.OP, EventKind.ANNOTATION)
    names = events.text("name")
    ops = events.of_kind(EventKind.OP)
    op_starts = np.sort(ops["start_ns"])
    next_op = np.searchsorted(op_starts, at_ns)
    times_ns = np.concatenate([at_ns, op_starts[np.minimum(next_op, len(op_starts) - 1)] if len(op_starts) else at_ns])
    phase = np.full(len(times_ns), FORWARD, np.int64)
    for index, prefix in _PHASE_PREFIXES:
        spans = events.select(names.matching(word.startswith(prefix) for word in names.vocabulary)).spans()
        phase[covered_ns(spans, times_ns, times_ns + 1) > 0] = index
    current, upcoming = phase[: len(at_ns)], phase[len(at_ns) :]
    in_op = covered_ns(ops.spans(), at_ns, at_ns + 1) > 0
    starts_soon = times_ns[len(at_ns) :] - at_ns <= JUST_BEFORE_NS
    return np.where((current == FORWARD) & ~in_op & (next_op < len(op_starts)) & starts_soon, upcoming, current)


def _step_time(run: Run, steps: Steps) -> Spans:
    """Return the time of steps and of recorded windows: a first step that fails is not in `steps`."""
    windows = np.array(run.recording.windows_ns, np.int64).reshape(-1, 2)
    return union_of(Spans(steps.start_ns, steps.end_ns), Spans(windows[:, 0], windows[:, 1]))


def _mask_in(rows: Rows, spans: Spans) -> NDArray[np.bool_]:
    if not len(spans.start_ns):
        return np.zeros(len(rows), bool)
    index = np.searchsorted(spans.start_ns, rows["at_ns"], side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (rows["at_ns"] < spans.end_ns[np.maximum(index, 0)])
    return inside
