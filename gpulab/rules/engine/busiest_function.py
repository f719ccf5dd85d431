"""The user's function in which most of the loop's time, or of the time in the DataLoader, goes by, as evidence."""

from __future__ import annotations

import re
from collections import Counter

from gpulab.analysis.host.frames import Frame, deepest_frame
from gpulab.analysis.steps.sampled_lines import sampled_lines
from gpulab.intervals import Spans, covered_ns, subtract, union
from gpulab.rules.engine.evidence import Evidence
from gpulab.tables import MarkKind
from gpulab.wording import percent

_MIN_SAMPLES = 20  # a share of fewer samples says little
_MIN_FRAC = 0.3
_MOST_FUNCTIONS = 4
_MIN_CALL_SAMPLES = 8
_MIN_LIBRARY_SAMPLES = 5
_SHARE_ERROR = 0.15  # of so few samples
_FORWARD = re.compile(r"forward \(")  # a frame in a model of the user's


def busiest_function_text(evidence: Evidence) -> tuple[str, ...]:
    """Return the function that most samples of the main thread show, outside the DataLoader; () if that is unknown."""
    frame = _sampled_frame(evidence, _loop_spans(evidence))
    if frame is None or frame.samples is None or frame.frac < _MIN_FRAC:
        return ()
    line = f"The main thread is in {frame.name} in {percent(frame.frac)} of {frame.samples} samples."
    return (line, *library_functions_text(evidence, frame.name))


def library_functions_text(evidence: Evidence, line: str) -> tuple[str, ...]:
    """Return where this line spends its time, if it runs the loop by a library, such as `trainer.fit()`; else ().

    By samples of all steps: `busiest_functions`.
    """
    sampled = sampled_lines(evidence.run, evidence.steps)
    inside = next((each.inside for each in sampled.lines if each.line == line), ()) if sampled else ()
    if not inside:
        return ()
    shares = ", ".join(f"{function.name} ({percent(function.frac)})" for function in inside[:_MOST_FUNCTIONS])
    return (f"By samples of whole steps, that line spends its time in {shares}.",)


def library_call_text(evidence: Evidence, share: float) -> tuple[str, ...]:
    """Return the library function, neither of PyTorch nor a model, that may take this share of a step; () if unknown.

    A function that far more samples of the main thread show contains other parts of the loop, too.
    """
    samples = evidence.run.host_rows
    inside = covered_ns(_loop_spans(evidence), samples["at_ns"], samples["at_ns"] + 1) > 0
    frames, calls = (samples.text(column).select(inside).to_list() for column in ("frame", "called"))
    models = tuple(f".{model.kind}.forward" for model in evidence.run.models)
    counted = Counter(
        (frame, call)
        for frame, call in zip(frames, calls, strict=True)
        if frame and call and not call.startswith("torch.") and not call.endswith(models) and not _FORWARD.match(frame)
    )
    if not counted:
        return ()
    (frame, call), number = counted.most_common(1)[0]
    if number < _MIN_LIBRARY_SAMPLES or not share / 2 <= number / len(calls) <= share + _SHARE_ERROR:
        return ()
    return (f"The main thread is in {call}, at {frame}, in {number} of {len(calls)} samples.",)


def loader_line_text(evidence: Evidence) -> tuple[str, ...]:
    """Return the user's line in which most of the time in the DataLoader goes by; () if that is unknown."""
    frame = _sampled_frame(evidence, _loader_spans(evidence))
    return () if frame is None else (f"{percent(frame.frac)} of the time in the DataLoader is in {frame.name}.",)


def share_of_calls(evidence: Evidence, pattern: str) -> float:
    """Return the share, 0-1, of the time in the DataLoader in which the user's line calls such a library function.

    `pattern`: a regular expression for the start of its name, "PIL.Image.open"; 0 if too few samples show it.
    """
    samples, spans = evidence.run.host_rows, _loader_spans(evidence)
    inside = covered_ns(spans, samples["at_ns"], samples["at_ns"] + 1) > 0
    if inside.sum() < _MIN_CALL_SAMPLES:
        return 0.0
    calls = samples.text("called").select(inside).to_list()
    return sum(name is not None and re.match(pattern, name) is not None for name in calls) / len(calls)


def _loop_spans(evidence: Evidence) -> Spans:
    """Return the steps, traced or not, without the time in the DataLoader."""
    steps = evidence.steps
    return subtract(union(steps.start_ns, steps.end_ns), _loader_spans(evidence))


def _loader_spans(evidence: Evidence) -> Spans:
    calls = evidence.run.mark_rows.of_kind(MarkKind.NEXT)
    return union(calls["start_ns"], calls["end_ns"])


def _sampled_frame(evidence: Evidence, spans: Spans) -> Frame | None:
    """Return the deepest frame in these spans; None if too few samples show it."""
    frame = deepest_frame(evidence.run, spans)
    return None if frame is not None and frame.samples is not None and frame.samples < _MIN_SAMPLES else frame
