"""Peak GPU memory by phase of a step: forward, backward, optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.recorded_spans import windows_of
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints, Spans, covered_ns, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

PHASES = ("forward", "backward", "optimizer")


FORWARD, BACKWARD, OPTIMIZER = range(3)  # indices into PHASES
NEAR_OP_NS = 100_000  # maximum time from an allocation to its operator, or from an operator to what it frees
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

    Memory is allocated inside an operator or just before it starts, and freed until shortly after one ends: between two
    operators of the same phase, this time belongs to it as well.
    """
    events = run.event_rows.of_kind(EventKind.OP, EventKind.ANNOTATION)
    busy = events.of_kind(EventKind.OP).spans()
    if not len(busy.start_ns):
        return _annotated_phase(events, at_ns)
    next_span = np.searchsorted(busy.start_ns, at_ns, side="right")
    after_ns = busy.start_ns[np.minimum(next_span, len(busy.start_ns) - 1)]
    before_ns = busy.end_ns[np.maximum(next_span - 1, 0)]
    current, upcoming, previous = (_annotated_phase(events, times) for times in (at_ns, after_ns, before_ns - 1))
    in_gap = (next_span == 0) | (at_ns >= before_ns)
    freed = (at_ns - before_ns <= NEAR_OP_NS) & (previous == upcoming)
    continues = (next_span < len(busy.start_ns)) & ((after_ns - at_ns <= NEAR_OP_NS) | freed)
    return np.where((current == FORWARD) & in_gap & continues, upcoming, current)


def _annotated_phase(events: Rows, at_ns: Ints) -> NDArray[np.int64]:
    """Return the phase by the operator or annotation that runs at each time; FORWARD if none has a phase."""
    phase = np.full(len(at_ns), FORWARD, np.int64)
    names = events.text("name")
    for index, prefix in _PHASE_PREFIXES:
        spans = events.select(names.matching(word.startswith(prefix) for word in names.vocabulary)).spans()
        phase[covered_ns(spans, at_ns, at_ns + 1) > 0] = index
    return phase


def _step_time(run: Run, steps: Steps) -> Spans:
    """Return the time of steps and of recorded windows: a first step that fails is not in `steps`."""
    return union_of(Spans(steps.start_ns, steps.end_ns), windows_of(run))


def _mask_in(rows: Rows, spans: Spans) -> NDArray[np.bool_]:
    if not len(spans.start_ns):
        return np.zeros(len(rows), bool)
    index = np.searchsorted(spans.start_ns, rows["at_ns"], side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (rows["at_ns"] < spans.end_ns[np.maximum(index, 0)])
    return inside
