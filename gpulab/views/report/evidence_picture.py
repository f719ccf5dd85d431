"""The evidence of a finding as a small picture: one typical place where it happened, host and GPU one above the other.

A finding may happen five thousand times. Shown is the place that is most like the others: around a span of typical
length, where as much is shaded as around most such spans. The words beside it say what host and GPU did meanwhile.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Spans, intersect
from gpulab.rules.engine.finding import Diagnosis, Finding
from gpulab.views.sheet.lanes import Lane, Window, host_and_device, shading
from gpulab.views.sheet.sheet import Timeline
from gpulab.views.sheet.step_picture import LEGEND, legend, svg, ticks
from gpulab.wording import duration, percent, scale, sentence

LANE_PX = 20
MOST_BYTES = 4_000  # of SVG; as data in an <img> a third more
SPANS_WIDE = 10  # a window is so many spans of typical length wide,
STEP_FRAC = 0.6  # or one step, where that would be most of one
MARGIN_FRAC = 0.15  # of a span that is longer than any step, on each side
MOST_CANDIDATES = 200
ALIKE = 1.25  # spans at most so many times as long or as short are of one length
WORTH_SAYING_FRAC = 0.05
WORTH_A_KEY_FRAC = 0.02
MOST_SAID = 3


def evidence(finding: Finding, diagnosis: Diagnosis) -> Timeline | None:
    """The picture; None where a finding has no spans, or nothing was recorded around them."""
    ledger, spans = diagnosis.ledger, finding.shown_by
    if ledger is None or not len(spans.start_ns):
        return None
    shown = place(spans, diagnosis.steps, diagnosis.run.span_ns)
    seen = shading(spans, shown)
    beside = host_and_device(diagnosis.run, ledger, shown)
    beside = tuple(Lane(lane.name, _within(lane, shown)) for lane in beside)
    if not any(lane.parts for lane in beside):
        return None
    drawn = (Lane("evidence", (("evidence", seen),)), *beside)
    starts = [int(diagnosis.steps.start_ns[index]) for index in shown.steps]
    return Timeline(
        svg=svg(drawn, shown, starts, seen, most_bytes=MOST_BYTES, lane_px=LANE_PX),
        lane_names=tuple(lane.name for lane in drawn),
        lane_px=LANE_PX,
        steps=(),
        ticks=ticks(shown),
        legend=legend(ledger, beside, shown, WORTH_A_KEY_FRAC),
        alt=_words(beside, ledger, shown, seen, _where(diagnosis.steps, shown)),
    )


def place(spans: Spans, steps: Steps, run_ns: int) -> Window:
    """Where the spans of a finding look most as they usually do."""
    spans = _in_interior(spans, steps)
    length = spans.end_ns - spans.start_ns
    typical_ns = _typical(length)
    alike = np.flatnonzero((length <= ALIKE * typical_ns) & (length * ALIKE >= typical_ns))
    alike = alike[np.linspace(0, len(alike) - 1, min(len(alike), MOST_CANDIDATES)).astype(np.int64)]
    centre = (spans.start_ns[alike] + spans.end_ns[alike]) // 2
    windows = _windows(centre, typical_ns, steps, run_ns)
    covered = Coverage.of(spans).within(windows[0], windows[1])
    best = int(np.argsort(covered, kind="stable")[len(covered) // 2])
    start_ns, end_ns = int(windows[0][best]), int(windows[1][best])
    inside = np.flatnonzero((steps.start_ns < end_ns) & (steps.end_ns > start_ns))
    return Window(start_ns, end_ns, tuple(inside.tolist()))


def _in_interior(spans: Spans, steps: Steps) -> Spans:
    """Those in interior steps, which alone are evidence; all of them where none is."""
    inside = intersect(spans, steps.interior_spans)
    return inside if len(inside.start_ns) else spans


def _typical(length: NDArray[np.int64]) -> int:
    """The length of which half of all the time is in longer spans: what matters, not what is most frequent."""
    ordered = np.sort(length)
    done = np.cumsum(ordered)
    return int(ordered[np.searchsorted(done, done[-1] / 2)])


def _windows(
    centre: NDArray[np.int64], typical_ns: int, steps: Steps, run_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A window around each place: some spans wide, or the step that it is in, or a little more than one long span."""
    interior = np.flatnonzero(steps.interior & (steps.end_ns > steps.start_ns))
    step_ns = int(np.median(steps.dur_ns[interior])) if len(interior) else run_ns
    width = SPANS_WIDE * typical_ns
    if width >= STEP_FRAC * step_ns and len(interior):
        row = np.searchsorted(steps.start_ns, centre, side="right") - 1
        within = (row >= 0) & (centre < steps.end_ns[np.maximum(row, 0)])
        if within.any() and typical_ns <= step_ns:
            return steps.start_ns[row[within]], steps.end_ns[row[within]]
    if width > step_ns:
        width = round((1 + 2 * MARGIN_FRAC) * max(typical_ns, step_ns))
    start = np.clip(centre - width // 2, 0, max(0, run_ns - width))
    return start, np.maximum(np.minimum(start + width, run_ns), start + 1)


def _within(lane: Lane, shown: Window) -> tuple[tuple[str, Spans], ...]:
    parts = ((key, shading(spans, shown)) for key, spans in lane.parts)
    return tuple((key, spans) for key, spans in parts if len(spans.start_ns))


def _where(steps: Steps, shown: Window) -> str:
    if not shown.steps or steps.found_by == "whole run":
        return f"from {duration(shown.start_ns)} on" if shown.start_ns else "from the start on"
    first, last = shown.steps[0] + 1, shown.steps[-1] + 1
    return f"in step {first}" if first == last else f"in steps {first} to {last}"


def _words(drawn: tuple[Lane, ...], ledger: Ledger, shown: Window, seen: Spans, where: str) -> str:
    """The picture in words, from the numbers that it is drawn from."""
    width = scale(shown.end_ns - shown.start_ns)(shown.end_ns - shown.start_ns)
    pieces = len(seen.start_ns)
    found = "at a stretch" if pieces == 1 else f"in {pieces:,} pieces"
    told = f"Seen for {duration(seen.total_ns)} of these {width} {where}, {found}"
    return f"{sentence(told)} Meanwhile: {'; '.join(_doing(lane, ledger, seen) for lane in drawn)}."


def _doing(lane: Lane, ledger: Ledger, seen: Spans) -> str:
    """What a lane did in the evidence's time: the largest parts, and the rest, which is nothing."""
    labels = {part.key: LEGEND.get(part.key, part.label) for part in ledger.parts}
    whole = max(1, seen.total_ns)
    shares = [(intersect(spans, seen).total_ns / whole, labels.get(key, key)) for key, spans in lane.parts]
    idle = 1.0 - sum(frac for frac, _ in shares)
    shares.append((idle, "idle" if lane.name == "GPU" else "nothing recorded"))
    ranked = [each for each in sorted(shares, reverse=True)[:MOST_SAID] if each[0] >= WORTH_SAYING_FRAC]
    return f"{lane.name} {', '.join(f'{label} {percent(frac)}' for frac, label in ranked)}"
