"""A picture of a few steps: host and GPU activity over time, in bins, so its size does not depend on the run.

In every column the height of a colour is its share of that time bin: a half-filled lane was busy for half of the bin,
however many kernels ran. So the coloured area is proportional to time, and empty area is idle time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, covered_ns, no_spans
from gpulab.rules.engine.finding import Diagnosis
from gpulab.views.sheet.lanes import Lane, Window, clip_to_window, middle_window, timeline_lanes
from gpulab.views.sheet.palette import EVIDENCE, NEUTRAL, colour
from gpulab.views.sheet.sheet import Mark, Row, TableBlock, Timeline
from gpulab.wording import Scale, duration, percent, scale, sentence

WIDTH, LANE_PX, PAD_PX = 800, 30, 4
LEVELS = 44  # heights a column can have; finer steps are below half a pixel
MAX_BYTES = 78_000  # as data in an <img> a third more
MIN_ROW_FRAC = 0.01
MIN_LEGEND_FRAC = 0.005  # smaller parts are single pixels; the ledger table labels their colours too


def step_timeline(diagnosis: Diagnosis) -> Timeline | None:
    """Return a picture of a few interior steps; None if no step was recorded with events."""
    time_window = middle_window(diagnosis.steps)
    if time_window is None or diagnosis.ledger is None:
        return None
    ledger, steps = diagnosis.ledger, diagnosis.steps
    drawn_lanes = timeline_lanes(diagnosis.run, ledger, time_window)
    first = diagnosis.first
    shade = clip_to_window(first.spans, time_window) if first else no_spans()
    starts = [int(steps.start_ns[index]) for index in time_window.steps]
    table = _table(ledger, steps, time_window)
    return Timeline(
        svg=lanes_svg(drawn_lanes, time_window, starts, shade),
        lane_names=tuple(lane.name for lane in drawn_lanes),
        lane_px=LANE_PX,
        steps=_step_marks(steps, time_window),
        ticks=axis_ticks(time_window),
        legend=lane_legend(ledger, drawn_lanes, time_window),
        alt=_alt(ledger, steps, time_window),
        shaded="shaded: evidence of the first finding" if first and len(shade.start_ns) else "",
        table=table,
    )


def lanes_svg(
    drawn_lanes: Iterable[Lane],
    time_window: Window,
    starts: Iterable[int],
    shade: Spans,
    overlay: str = "",
    *,
    max_bytes: int = MAX_BYTES,
    lane_px: int = LANE_PX,
) -> str:
    """Return the lanes as SVG without text, at most `max_bytes` long; it scales to the available width.

    `above` is SVG drawn_lanes on top, in a picture WIDTH wide and `lane_px` high for each lane.
    """
    drawn_lanes, starts = tuple(drawn_lanes), tuple(starts)
    for bins in (WIDTH, WIDTH // 2, WIDTH // 4, WIDTH // 8, WIDTH // 16):
        drawing = "".join((*_elements(drawn_lanes, time_window, starts, shade, bins, lane_px), overlay, "</svg>"))
        if len(drawing) <= max_bytes:
            break
    return drawing


def _elements(
    drawn_lanes: tuple[Lane, ...], time_window: Window, starts: tuple[int, ...], shade: Spans, bins: int, lane_px: int
) -> Iterator[str]:
    height = lane_px * len(drawn_lanes)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges">'
    )
    edges = np.linspace(time_window.start_ns, time_window.end_ns, bins + 1).astype(np.int64)
    coverage = covered_fractions(shade, edges)
    # Shade bins that are covered by at least half; if there are none, every bin that is covered at all.
    shaded = bars_path(coverage >= 0.5 if (coverage >= 0.5).any() else coverage > 0, height)
    if shaded:
        yield f'<path fill="{EVIDENCE}" fill-opacity=".22" transform="scale({WIDTH / bins:g} 1)" d="{shaded}"/>'
    for row, lane in enumerate(drawn_lanes):
        top = row * lane_px + PAD_PX
        bottom = top + lane_px - 2 * PAD_PX
        yield f'<path fill="{NEUTRAL}" fill-opacity=".16" d="M0 {top}H{WIDTH}V{bottom}H0z"/>'
        yield f'<g transform="translate(0 {bottom}) scale({WIDTH / bins:g} {-(bottom - top) / LEVELS:g})">'
        yield from _stacked(lane, edges)
        yield "</g>"
    span = max(1, time_window.end_ns - time_window.start_ns)
    for start in starts:
        x = WIDTH * (start - time_window.start_ns) / span
        if 0 <= x < WIDTH:
            yield f'<path fill="{NEUTRAL}" d="M{x:.1f} 0h1V{height}h-1z"/>'


def _stacked(lane: Lane, edges: NDArray[np.int64]) -> Iterator[str]:
    """Draw the parts of a lane stacked, from the highest down, so that each covers the one before."""
    heights = np.zeros(len(edges) - 1)
    layers = []
    for key, spans in lane.parts:
        heights = heights + covered_fractions(spans, edges)
        layers.append((key, np.rint(np.minimum(heights, 1.0) * LEVELS).astype(np.int64)))
    unders = [np.zeros(len(heights), np.int64), *(levels for _, levels in layers[:-1])]
    for (key, levels), under in zip(reversed(layers), reversed(unders[: len(layers)]), strict=True):
        # Only the columns that rise above the layer that will cover them.
        outline = _outline(np.where(levels > under, levels, 0))
        if outline:
            yield f'<path fill="{colour(key)}" d="{outline}"/>'


def covered_fractions(spans: Spans, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the fraction of each bin that the spans cover."""
    widths = np.maximum(np.diff(edges), 1)
    shares: NDArray[np.float64] = covered_ns(spans, edges[:-1], edges[1:]) / widths
    return shares


def _outline(levels: NDArray[np.int64]) -> str:
    """Return columns of these heights as one SVG path, with a rectangle for each run of equal heights."""
    if not levels.any():
        return ""
    change = np.flatnonzero(np.diff(levels)) + 1
    begins, ends = np.append(0, change), np.append(change, len(levels))
    heights = levels[begins]
    commands, end_of_last = [], -1
    for begin, end, height in zip(begins.tolist(), ends.tolist(), heights.tolist(), strict=True):
        if height == 0:
            continue
        # Touching columns share an outline; after a gap a new one starts at the base line.
        restart = f"{'V0z' if end_of_last >= 0 else ''}M{begin} 0V{height}H{end}"
        commands.append(f"V{height}H{end}" if begin == end_of_last else restart)
        end_of_last = end
    return "".join(commands) + "V0z"


def bars_path(marked: NDArray[np.bool_], height: int) -> str:
    """Return an SVG path of full-height bars at the marked columns."""
    edge = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False])).astype(np.int8)))
    pairs = zip(edge[::2].tolist(), edge[1::2].tolist(), strict=True)
    return "".join(f"M{begin} 0H{end}V{height}H{begin}z" for begin, end in pairs)


def _step_marks(steps: Steps, time_window: Window) -> tuple[Mark, ...]:
    span = max(1, time_window.end_ns - time_window.start_ns)
    unit = scale(max(int(steps.dur_ns[index]) for index in time_window.steps), figures=4)
    return tuple(
        Mark(
            (int(steps.start_ns[index]) - time_window.start_ns) / span,
            (int(steps.end_ns[index]) - time_window.start_ns) / span,
            f"{_name(steps, index)}: {unit(int(steps.dur_ns[index]))}",
        )
        for index in time_window.steps
    )


def _name(steps: Steps, index: int) -> str:
    return "all" if steps.detected_by == "whole run" else f"step {index + 1}"


def axis_ticks(time_window: Window) -> tuple[Mark, ...]:
    """Return the ticks of the axis, about six at round numbers; the first shows the unit."""
    span = max(1, time_window.end_ns - time_window.start_ns)
    every_ns = _round_up(span / 6)
    unit = _tick_scale(span, every_ns)
    positions = np.arange(0, span, every_ns)
    ends = np.append(positions[1:], span)

    def label(start: float, end: float) -> str:
        if end - start < 0.07 * span:  # no room for a number before the edge
            return ""
        return unit.number(start) if start else unit(start)

    return tuple(Mark(start / span, end / span, label(start, end)) for start, end in zip(positions, ends, strict=True))


def _tick_scale(span_ns: float, every_ns: float) -> Scale:
    longest = scale(span_ns)
    decimals = max(0, -int(np.floor(np.log10(every_ns / longest.unit_ns) + 1e-9)))
    return Scale(longest.unit_ns, longest.unit, decimals)


def _round_up(value: float) -> float:
    """Round up to the next of 1, 2, 5, 10, 20, 50 ..."""
    power = 10.0 ** np.floor(np.log10(max(value, 1.0)))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9)))


def lane_legend(
    ledger: Ledger, drawn_lanes: tuple[Lane, ...], time_window: Window, min_frac: float = MIN_LEGEND_FRAC
) -> tuple[tuple[str, str], ...]:
    """Return key and label of each colour in the picture, in ledger order, without those below `min_frac`."""
    min_ns = min_frac * (time_window.end_ns - time_window.start_ns)
    visible = {
        key
        for lane in drawn_lanes
        for key, spans in lane.parts
        if clip_to_window(spans, time_window).total_ns >= min_ns
    }
    return tuple((part.key, LANE_LABELS.get(part.key, part.label)) for part in ledger.parts if part.key in visible)


# A lane shows all communication and copies, the ledger only the exposed part: these labels replace "exposed ...".
LANE_LABELS = {"communication": "communication", "copies": "copies", "sync": "synchronising call"}


def _table(ledger: Ledger, steps: Steps, time_window: Window) -> TableBlock:
    """Return the same steps as a table: every part of at least WORTH_SAYING_FRAC of the time."""
    rows = _rows(steps, time_window)
    total = sum(int(ledger.step_ns[row]) for row in rows)
    parts = [
        part for part in ledger.parts if sum(int(ledger.part_ns[part.key][row]) for row in rows) >= MIN_ROW_FRAC * total
    ]
    unit = scale(max(int(ledger.step_ns[row]) for row in rows), figures=4)
    body = [
        Row((part.label, *(unit.number(int(ledger.part_ns[part.key][row])) for row in rows)), key=part.key)
        for part in parts
    ]
    rest = [int(ledger.step_ns[row]) - sum(int(ledger.part_ns[part.key][row]) for part in parts) for row in rows]
    if any(rest):
        body.append(Row(("all else", *map(unit.number, rest)), key="rest"))
    body.append(Row(("total", *(unit.number(int(ledger.step_ns[row])) for row in rows)), kind="total"))
    header = (unit.unit, *(_name(steps, index) for index in time_window.steps))
    return TableBlock(header=header, rows=tuple(body))


def _rows(steps: Steps, time_window: Window) -> list[int]:
    """Return the ledger rows of the steps in the window; the ledger has a row for each non-empty interior step."""
    judged = np.flatnonzero(steps.interior & (steps.end_ns > steps.start_ns)).tolist()
    return [judged.index(index) for index in time_window.steps]


def _alt(ledger: Ledger, steps: Steps, time_window: Window) -> str:
    """Describe the picture in a sentence, from the numbers it is drawn_lanes from."""
    rows = _rows(steps, time_window)
    total_ns = max(1, int(ledger.step_ns[rows].sum()))
    shares = [(int(ledger.part_ns[part.key][rows].sum()) / total_ns, part.label) for part in ledger.parts]
    largest = ", ".join(f"{label} {percent(frac)}" for frac, label in sorted(shares, reverse=True)[:3] if frac > 0)
    first, last = time_window.steps[0] + 1, time_window.steps[-1] + 1
    subject = _name(steps, time_window.steps[0]) if first == last else f"steps {first} to {last}"
    length = duration(time_window.end_ns - time_window.start_ns)
    overhead = " as recorded" if steps.unprofiled_ns is None else ", with the overhead of the profiler"
    return sentence(f"Timeline of {subject}{overhead}: {length} in total. Largest parts: {largest}")
