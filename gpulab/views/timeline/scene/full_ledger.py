"""The ledger of all that was recorded: interior steps as the ledger has them, and what lies beside them."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, ledger
from gpulab.intervals import Spans, gaps, merged, nothing, subtract, union
from gpulab.run import Run

MOST_PIECES = 4


def whole(run: Run, accounts: Ledger | None) -> dict[str, Spans]:
    """Each moment that was recorded to one part of the ledger; empty where there is none."""
    if accounts is None:
        return {}
    judged = union(
        np.concatenate([spans.start_ns for spans in accounts.spans.values()]),
        np.concatenate([spans.end_ns for spans in accounts.spans.values()]),
    )
    beside = _beside(run, judged)
    if not len(beside.start_ns):
        return dict(accounts.spans)
    rest = [_ledger(run, each) for each in _pieces(beside)]
    return {
        key: merged(spans, *(each.spans[key] for each in rest if each is not None))
        for key, spans in accounts.spans.items()
    }


def _pieces(beside: Spans) -> list[Spans]:
    """Piece by piece where they are few: what lies between two of them is then not looked at again."""
    if len(beside.start_ns) > MOST_PIECES:
        return [beside]
    return [
        Spans(beside.start_ns[place : place + 1], beside.end_ns[place : place + 1])
        for place in range(len(beside.start_ns))
    ]


def _ledger(run: Run, pieces: Spans) -> Ledger | None:
    every = np.ones(len(pieces.start_ns), bool)
    return ledger(run, Steps(pieces.start_ns, pieces.end_ns, every, every, ~every, "recording"))


def of_recorded(run: Run) -> Ledger | None:
    """The ledger of all that was recorded, where no step was; None where there are no events."""
    spans = recorded(run)
    return _ledger(run, spans) if len(spans.start_ns) else None


def recorded(run: Run) -> Spans:
    """When events were recorded; not while gpulab itself held the main thread."""
    if not len(run.event_rows):
        return nothing()
    windows, pauses = (
        np.array(each, np.int64).reshape(-1, 2) for each in (run.recording.windows_ns, run.recording.pauses_ns)
    )
    if len(windows):
        return subtract(union(windows[:, 0], windows[:, 1]), union(pauses[:, 0], pauses[:, 1]))
    start, dur = run.event_rows["start_ns"], run.event_rows["dur_ns"]
    return union(start.min(keepdims=True), (start + dur).max(keepdims=True))


def _beside(run: Run, judged: Spans) -> Spans:
    """The time with events that the ledger of the interior steps does not tell of."""
    parts = [gaps(judged, start, end) for start, end in zip(*(each.tolist() for each in recorded(run)), strict=True)]
    return merged(*parts)
