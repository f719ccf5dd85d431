"""Forward passes without a backward pass in some part of a run, as far as events were recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.recorded_spans import windows_of
from gpulab.analysis.host.model_calls import forward_calls
from gpulab.analysis.steps.forward_backward import backward_passes, forward_backward_spans
from gpulab.intervals import Spans, covered_ns, intersect, no_spans
from gpulab.run import Run

_MIN_RECORDED_NS = 20_000_000  # a part of an evaluation that is so long has forward passes
_COMPILED = ("Torch-Compiled Region", "CompiledFxGraph", "CompiledFunction", "## Call CompiledFxGraph")


@dataclass(frozen=True, kw_only=True)
class ForwardOnly:
    """Calls of layers in the recorded parts of an evaluation."""

    calls: int  # without a backward pass after them
    passes: int | None  # forward passes in the median of the parts recorded from start to end; None without such parts
    runs_model: bool  # a layer or compiled code ran, whatever follows


def forward_only(run: Run, spans: Spans) -> ForwardOnly | None:
    """Count the calls of layers in these spans; None if too little of them was recorded, or no layer is known."""
    windows, calls = windows_of(run), forward_calls(run)
    if intersect(spans, windows).total_ns < _MIN_RECORDED_NS or not len(calls):
        return None
    training, backward = forward_backward_spans(run), backward_passes(run)
    training = no_spans() if training is None else training
    at_ns = calls["start_ns"]
    trains = covered_ns(training, at_ns, at_ns + calls["dur_ns"]) > 0
    alone_ns = np.sort(at_ns[~trains])
    inside = np.searchsorted(alone_ns, spans.end_ns) - np.searchsorted(alone_ns, spans.start_ns)
    is_complete = covered_ns(windows, *spans) == spans.end_ns - spans.start_ns
    per_pass = 0 if backward is None else round(int(trains.sum()) / max(1, len(backward.spans.start_ns)))
    passes = np.round(inside[is_complete] / per_pass) if per_pass else np.empty(0)
    runs_model = bool((covered_ns(spans, at_ns, at_ns + 1) > 0).any()) or _runs_compiled_code(run, spans)
    return ForwardOnly(
        calls=int(inside.sum()), passes=int(np.median(passes)) if len(passes) else None, runs_model=runs_model
    )


def _runs_compiled_code(run: Run, spans: Spans) -> bool:
    events = run.event_rows
    at_ns = events["start_ns"][events.matching(lambda word: word.startswith(_COMPILED))]
    return bool((covered_ns(spans, at_ns, at_ns + 1) > 0).any())
