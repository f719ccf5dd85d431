"""The user's function in which most of the loop's time, or of the time in the DataLoader, goes by, as evidence."""

from __future__ import annotations

from gpulab.analysis.host.frames import Frame, deepest_frame
from gpulab.intervals import Spans, subtract, union
from gpulab.rules.engine.evidence import Evidence
from gpulab.tables import MarkKind
from gpulab.wording import percent

_MIN_SAMPLES = 20  # a share of fewer samples says little
_MIN_FRAC = 0.3


def busiest_function_text(evidence: Evidence) -> tuple[str, ...]:
    """Return the function that most samples of the main thread show, outside the DataLoader; () if that is unknown."""
    steps = evidence.steps
    loop = subtract(union(steps.start_ns, steps.end_ns), _loader_spans(evidence))
    frame = _sampled_frame(evidence, loop)
    if frame is None or frame.samples is None or frame.frac < _MIN_FRAC:
        return ()
    return (f"The main thread is in {frame.name} in {percent(frame.frac)} of {frame.samples} samples.",)


def loader_line_text(evidence: Evidence) -> tuple[str, ...]:
    """Return the user's line in which most of the time in the DataLoader goes by; () if that is unknown."""
    frame = _sampled_frame(evidence, _loader_spans(evidence))
    return () if frame is None else (f"{percent(frame.frac)} of the time in the DataLoader is in {frame.name}.",)


def _loader_spans(evidence: Evidence) -> Spans:
    calls = evidence.run.mark_rows.of_kind(MarkKind.NEXT)
    return union(calls["start_ns"], calls["end_ns"])


def _sampled_frame(evidence: Evidence, spans: Spans) -> Frame | None:
    """Return the deepest frame in these spans; None if too few samples show it."""
    frame = deepest_frame(evidence.run, spans)
    return None if frame is not None and frame.samples is not None and frame.samples < _MIN_SAMPLES else frame
