"""The user's function in which most of the loop's time goes by, as evidence."""

from __future__ import annotations

from gpulab.analysis.host.frames import deepest_frame
from gpulab.intervals import subtract, union
from gpulab.rules.engine.evidence import Evidence
from gpulab.tables import MarkKind
from gpulab.wording import percent

_MIN_SAMPLES = 20  # a share of fewer samples says little
_MIN_FRAC = 0.3


def busiest_function_text(evidence: Evidence) -> tuple[str, ...]:
    """Return the function that most samples of the main thread show, outside the DataLoader; () if that is unknown."""
    run, steps = evidence.run, evidence.steps
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    loop = subtract(union(steps.start_ns, steps.end_ns), union(calls["start_ns"], calls["end_ns"]))
    frame = deepest_frame(run, loop)
    if frame is None or frame.samples is None or frame.samples < _MIN_SAMPLES or frame.frac < _MIN_FRAC:
        return ()
    return (f"The main thread is in {frame.name} in {percent(frame.frac)} of {frame.samples} samples.",)
