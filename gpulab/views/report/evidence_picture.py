"""The evidence of a finding as a small picture: one typical occurrence, with host and GPU one above the other.

A finding may occur thousands of times. The picture shows the most typical occurrence: a window around a span of typical
length in which the evidence covers a median share of the time. The text says what host and GPU did meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Spans, intersect
from gpulab.rules.engine.finding import Diagnosis, Finding
from gpulab.views.sheet.lanes import Lane, Window, clip_to_window, host_and_gpu_lanes
from gpulab.views.sheet.sheet import Timeline
from gpulab.views.sheet.step_picture import LANE_LABELS, axis_ticks, lane_legend, lanes_svg
from gpulab.wording import duration, percent

LANE_PX = 20
MAX_BYTES = 4_000  # of SVG; as data in an <img> a third more
SPANS_WIDE = 10  # width of a window, in spans of typical length;
STEP_FRAC = 0.6  # one step, if that width is at least this fraction of a step
MARGIN_FRAC = 0.15  # on each side of a span that is longer than a step
MAX_CANDIDATES = 200
TYPICAL_RATIO = 1.25  # a span is of typical length if it is at most this many times longer or shorter
MIN_TEXT_FRAC = 0.05
MIN_LEGEND_FRAC = 0.02
MAX_PARTS = 3  # listed per lane
_ALL_FRAC = 0.995  # a part with a larger share is shown without the share


def evidence_timeline(finding: Finding, diagnosis: Diagnosis) -> Timeline | None:
    """Return the picture; None if a finding has no spans, or if nothing was recorded around them."""
    ledger, spans = diagnosis.ledger, finding.spans
    if ledger is None or not len(spans.start_ns):
        return None
    time_window = typical_window(spans, diagnosis.steps, diagnosis.run.span_ns)
    evidence_spans = clip_to_window(spans, time_window)
    activity = host_and_gpu_lanes(diagnosis.run, ledger, time_window)
    activity = tuple(Lane(lane.name, _parts_in_window(lane, time_window)) for lane in activity)
    if not any(lane.parts for lane in activity):
        return None
    lanes = (Lane("evidence", (("evidence", evidence_spans),)), *activity)
    starts = [int(diagnosis.steps.start_ns[index]) for index in time_window.steps]
    return Timeline(
        svg=lanes_svg(lanes, time_window, starts, evidence_spans, max_bytes=MAX_BYTES, lane_px=LANE_PX),
        lane_names=tuple(lane.name for lane in lanes),
        lane_px=LANE_PX,
        steps=(),
        ticks=axis_ticks(time_window),
        legend=lane_legend(ledger, activity, time_window, MIN_LEGEND_FRAC),
        alt=_description(activity, ledger, evidence_spans, _position(diagnosis.steps, time_window)),
    )


def typical_window(spans: Spans, steps: Steps, run_ns: int) -> Window:
    """Return the window with the most typical occurrence of a finding, and the steps in it."""
    spans = _in_interior(spans, steps)
    length = spans.end_ns - spans.start_ns
    typical_ns = _typical(length)
    typical = np.flatnonzero((length <= TYPICAL_RATIO * typical_ns) & (length * TYPICAL_RATIO >= typical_ns))
    typical = typical[np.linspace(0, len(typical) - 1, min(len(typical), MAX_CANDIDATES)).astype(np.int64)]
    centre = (spans.start_ns[typical] + spans.end_ns[typical]) // 2
    windows = _windows(centre, typical_ns, steps, run_ns)
    covered = Coverage.of(spans).covered_ns(windows[0], windows[1])
    best = int(np.argsort(covered, kind="stable")[len(covered) // 2])
    start_ns, end_ns = int(windows[0][best]), int(windows[1][best])
    inside = np.flatnonzero((steps.start_ns < end_ns) & (steps.end_ns > start_ns))
    return Window(start_ns, end_ns, tuple(inside.tolist()))


def _in_interior(spans: Spans, steps: Steps) -> Spans:
    """Return the spans in interior steps, because only those are evidence; all spans if none is in an interior step."""
    inside = intersect(spans, steps.interior_spans)
    return inside if len(inside.start_ns) else spans


def _typical(length: NDArray[np.int64]) -> int:
    """Return the time-weighted median length: half of the total time is in longer spans.

    Long spans matter more than frequent ones.
    """
    ordered = np.sort(length)
    done = np.cumsum(ordered)
    return int(ordered[np.searchsorted(done, done[-1] / 2)])


def _windows(
    centre: NDArray[np.int64], typical_ns: int, steps: Steps, run_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and end of a window around each centre: some spans wide, a whole step, or a little over one span."""
    interior = np.flatnonzero(steps.interior & (steps.end_ns > steps.start_ns))
    step_ns = int(np.median(steps.dur_ns[interior])) if len(interior) else run_ns
    width = SPANS_WIDE * typical_ns
    if width >= STEP_FRAC * step_ns and len(interior):
        row = np.searchsorted(steps.start_ns, centre, side="right") - 1
        in_step = (row >= 0) & (centre < steps.end_ns[np.maximum(row, 0)])
        if in_step.any() and typical_ns <= step_ns:
            return steps.start_ns[row[in_step]], steps.end_ns[row[in_step]]
    if width > step_ns:
        width = round((1 + 2 * MARGIN_FRAC) * max(typical_ns, step_ns))
    start = np.clip(centre - width // 2, 0, max(0, run_ns - width))
    return start, np.maximum(np.minimum(start + width, run_ns), start + 1)


def _parts_in_window(lane: Lane, time_window: Window) -> tuple[tuple[str, Spans], ...]:
    parts = ((key, clip_to_window(spans, time_window)) for key, spans in lane.parts)
    return tuple((key, spans) for key, spans in parts if len(spans.start_ns))


def _position(steps: Steps, time_window: Window) -> str:
    """Return the place and length of a window: "step 17 (57 ms)", "an excerpt of 26 ms within steps 12 to 13"."""
    length = duration(time_window.end_ns - time_window.start_ns)
    if not time_window.steps or steps.detected_by == "whole run":
        if not time_window.start_ns:
            return f"an excerpt of {length} at the start of the recording"
        return f"an excerpt of {length} from the recording, {duration(time_window.start_ns)} after its start"
    first, last = time_window.steps[0], time_window.steps[-1]
    if (int(steps.start_ns[first]), int(steps.end_ns[last])) == (time_window.start_ns, time_window.end_ns):
        return f"{_steps(first, last)} ({length})"
    return f"an excerpt of {length} within {_steps(first, last)}"


def _steps(first: int, last: int) -> str:
    return f"step {first + 1}" if first == last else f"steps {first + 1} to {last + 1}"


def _description(activity: tuple[Lane, ...], ledger: Ledger, evidence_spans: Spans, position: str) -> str:
    """Describe the picture in text, from the numbers it is drawn from."""
    shares = {lane.name: _lane_shares(lane, ledger, evidence_spans) for lane in activity}
    length = duration(evidence_spans.total_ns)
    is_idle = shares.get("GPU") == "idle"
    # Not "takes": of the passes that compute padding, for example, only a part is due to it.
    effect = f"this cause leaves the GPU idle for {length}" if is_idle else f"this finding concerns {length}"
    # If the GPU works, what the CPU does beside it is not the cause.
    parts = shares.get("host" if is_idle else "GPU", shares.get("CPU", ""))
    if "%" not in parts:  # a single part is the cause itself
        return f"Example: in {position}, {effect}."
    return f"Example: in {position}, {effect} ({'meanwhile on the CPU: ' if is_idle else ''}{parts})."


def _lane_shares(lane: Lane, ledger: Ledger, evidence_spans: Spans) -> str:
    """Return the largest parts of a lane during the evidence, and its idle share: "63 % launch calls, ..."."""
    labels = {part.key: LANE_LABELS.get(part.key, part.label) for part in ledger.parts}
    evidence_ns = max(1, evidence_spans.total_ns)
    shares = [
        (intersect(spans, evidence_spans).total_ns / evidence_ns, labels.get(key, key)) for key, spans in lane.parts
    ]
    idle = 1.0 - sum(frac for frac, _ in shares)
    shares.append((idle, "idle" if lane.name == "GPU" else "nothing recorded"))
    ranked = [each for each in sorted(shares, reverse=True)[:MAX_PARTS] if each[0] >= MIN_TEXT_FRAC]
    if ranked[0][0] > _ALL_FRAC:
        return ranked[0][1]
    return ", ".join(f"{percent(frac)} {label}" for frac, label in ranked)
