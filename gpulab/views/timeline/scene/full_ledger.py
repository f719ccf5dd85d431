"""The ledger of all recorded time: the ledger of the interior steps, extended to edge steps and time between steps."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.intervals import Spans, gaps, no_spans, subtract, union, union_of
from gpulab.run import Run

_MAX_SEPARATE_SPANS = 4


def full_ledger(run: Run, accounts: Ledger | None) -> dict[str, Spans]:
    """Assign all recorded time to the parts of the ledger; empty without a ledger."""
    if accounts is None:
        return {}
    interior = union(
        np.concatenate([spans.start_ns for spans in accounts.spans.values()]),
        np.concatenate([spans.end_ns for spans in accounts.spans.values()]),
    )
    remainder = _remainder(run, interior)
    if not len(remainder.start_ns):
        return dict(accounts.spans)
    ledgers = [_ledger(run, spans) for spans in _separate(remainder)]
    return {
        key: union_of(spans, *(other.spans[key] for other in ledgers if other is not None))
        for key, spans in accounts.spans.items()
    }


def _separate(remainder: Spans) -> list[Spans]:
    """Split into single spans if there are few: then the time between two spans is not analysed again."""
    if len(remainder.start_ns) > _MAX_SEPARATE_SPANS:
        return [remainder]
    return [
        Spans(remainder.start_ns[index : index + 1], remainder.end_ns[index : index + 1])
        for index in range(len(remainder.start_ns))
    ]


def _ledger(run: Run, spans: Spans) -> Ledger | None:
    """Compute the ledger of spans as if each were a step."""
    every = np.ones(len(spans.start_ns), bool)
    return build_ledger(run, Steps(spans.start_ns, spans.end_ns, every, every, ~every, "recording"))


def ledger_of_recording(run: Run) -> Ledger | None:
    """Return the ledger of all recorded time, for a run without steps; None without events."""
    spans = recorded_spans(run)
    return _ledger(run, spans) if len(spans.start_ns) else None


def recorded_spans(run: Run) -> Spans:
    """Return when events were recorded, without pauses in which gpulab itself used the main thread."""
    if not len(run.event_rows):
        return no_spans()
    windows, pauses = (
        np.array(pairs, np.int64).reshape(-1, 2) for pairs in (run.recording.windows_ns, run.recording.pauses_ns)
    )
    if len(windows):
        return subtract(union(windows[:, 0], windows[:, 1]), union(pauses[:, 0], pauses[:, 1]))
    start, dur = run.event_rows["start_ns"], run.event_rows["dur_ns"]
    return union(start.min(keepdims=True), (start + dur).max(keepdims=True))


def _remainder(run: Run, interior: Spans) -> Spans:
    """Return the recorded time that the ledger of the interior steps does not cover."""
    bounds = zip(*(edges.tolist() for edges in recorded_spans(run)), strict=True)
    return union_of(*[gaps(interior, start, end) for start, end in bounds])
