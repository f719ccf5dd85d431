"""A picture of a few steps: who worked when. Drawn from bins of time, so its size does not grow with the run's.

In every column of the picture the height of a colour is its share of that stretch of time: a lane half filled was
half busy there, however many thousand kernels that was. So the inked area is the time, and what is empty was idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, covered_ns, nothing
from gpulab.rules.engine.finding import Diagnosis
from gpulab.views.sheet.lanes import Lane, Window, lanes, shading, window
from gpulab.views.sheet.palette import EVIDENCE, NEUTRAL, colour
from gpulab.views.sheet.sheet import Mark, Row, Table, Timeline
from gpulab.wording import Scale, duration, percent, scale, sentence

WIDTH, LANE_PX, PAD_PX = 800, 30, 4
LEVELS = 44  # heights a column can have; finer than half a pixel is not seen
MOST_BYTES = 78_000  # as data in an <img> a third more
WORTH_SAYING_FRAC = 0.01
WORTH_A_KEY_FRAC = 0.005  # less is a pixel here and there; the table of the ledger names its colour too


def picture(diagnosis: Diagnosis) -> Timeline | None:
    """The picture of a few interior steps; None where no step was recorded with events."""
    shown = window(diagnosis.steps)
    if shown is None or diagnosis.ledger is None:
        return None
    ledger, steps = diagnosis.ledger, diagnosis.steps
    drawn = lanes(diagnosis.run, ledger, shown)
    first = diagnosis.first
    shade = shading(first.shown_by, shown) if first else nothing()
    starts = [int(steps.start_ns[index]) for index in shown.steps]
    table = _table(ledger, steps, shown)
    return Timeline(
        svg=svg(drawn, shown, starts, shade),
        lane_names=tuple(lane.name for lane in drawn),
        lane_px=LANE_PX,
        steps=_step_marks(steps, shown),
        ticks=ticks(shown),
        legend=legend(ledger, drawn, shown),
        alt=_alt(ledger, steps, shown),
        shaded="shaded: what the first finding is about" if first and len(shade.start_ns) else "",
        table=table,
    )


def svg(
    drawn: Iterable[Lane],
    shown: Window,
    starts: Iterable[int],
    shade: Spans,
    above: str = "",
    *,
    most_bytes: int = MOST_BYTES,
    lane_px: int = LANE_PX,
) -> str:
    """The lanes as SVG without text, at most `most_bytes`; it is stretched to whatever width there is.

    `above` is drawn last, in a picture WIDTH wide and `lane_px` high for each lane.
    """
    drawn, starts = tuple(drawn), tuple(starts)
    for bins in (WIDTH, WIDTH // 2, WIDTH // 4, WIDTH // 8, WIDTH // 16):
        drawing = "".join((*_pieces(drawn, shown, starts, shade, bins, lane_px), above, "</svg>"))
        if len(drawing) <= most_bytes:
            break
    return drawing


def _pieces(
    drawn: tuple[Lane, ...], shown: Window, starts: tuple[int, ...], shade: Spans, bins: int, lane_px: int
) -> Iterator[str]:
    height = lane_px * len(drawn)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges">'
    )
    edges = np.linspace(shown.start_ns, shown.end_ns, bins + 1).astype(np.int64)
    meant = filled(shade, edges)
    # A pixel is shaded where most of it is meant; where that is nowhere, wherever any is.
    shaded = bars(meant >= 0.5 if (meant >= 0.5).any() else meant > 0, height)
    if shaded:
        yield f'<path fill="{EVIDENCE}" fill-opacity=".22" transform="scale({WIDTH / bins:g} 1)" d="{shaded}"/>'
    for row, lane in enumerate(drawn):
        top = row * lane_px + PAD_PX
        bottom = top + lane_px - 2 * PAD_PX
        yield f'<path fill="{NEUTRAL}" fill-opacity=".16" d="M0 {top}H{WIDTH}V{bottom}H0z"/>'
        yield f'<g transform="translate(0 {bottom}) scale({WIDTH / bins:g} {-(bottom - top) / LEVELS:g})">'
        yield from _stacked(lane, edges)
        yield "</g>"
    span = max(1, shown.end_ns - shown.start_ns)
    for start in starts:
        at = WIDTH * (start - shown.start_ns) / span
        if 0 <= at < WIDTH:
            yield f'<path fill="{NEUTRAL}" d="M{at:.1f} 0h1V{height}h-1z"/>'


def _stacked(lane: Lane, edges: NDArray[np.int64]) -> Iterator[str]:
    """The parts of a lane, one on top of the other; drawn from the highest down, so that each covers the last."""
    heights = np.zeros(len(edges) - 1)
    layers = []
    for key, spans in lane.parts:
        heights = heights + filled(spans, edges)
        layers.append((key, np.rint(np.minimum(heights, 1.0) * LEVELS).astype(np.int64)))
    unders = [np.zeros(len(heights), np.int64), *(levels for _, levels in layers[:-1])]
    for (key, levels), under in zip(reversed(layers), reversed(unders[: len(layers)]), strict=True):
        # Only where it rises above what will cover it.
        outline = _outline(np.where(levels > under, levels, 0))
        if outline:
            yield f'<path fill="{colour(key)}" d="{outline}"/>'


def filled(spans: Spans, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of each bin that the spans cover."""
    widths = np.maximum(np.diff(edges), 1)
    shares: NDArray[np.float64] = covered_ns(spans, edges[:-1], edges[1:]) / widths
    return shares


def _outline(levels: NDArray[np.int64]) -> str:
    """Columns of these heights as one path, a rectangle for each run of equal ones."""
    if not levels.any():
        return ""
    change = np.flatnonzero(np.diff(levels)) + 1
    begins, ends = np.append(0, change), np.append(change, len(levels))
    heights = levels[begins]
    pieces, at = [], -1
    for begin, end, height in zip(begins.tolist(), ends.tolist(), heights.tolist(), strict=True):
        if height == 0:
            continue
        # Touching columns share an outline, so the path goes on; after a gap it starts anew from the ground.
        pieces.append(f"V{height}H{end}" if begin == at else f"{'V0z' if at >= 0 else ''}M{begin} 0V{height}H{end}")
        at = end
    return "".join(pieces) + "V0z"


def bars(marked: NDArray[np.bool_], height: int) -> str:
    """Full-height bars where marked."""
    edge = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False])).astype(np.int8)))
    pairs = zip(edge[::2].tolist(), edge[1::2].tolist(), strict=True)
    return "".join(f"M{begin} 0H{end}V{height}H{begin}z" for begin, end in pairs)


def _step_marks(steps: Steps, shown: Window) -> tuple[Mark, ...]:
    span = max(1, shown.end_ns - shown.start_ns)
    unit = scale(max(int(steps.dur_ns[index]) for index in shown.steps), figures=4)
    return tuple(
        Mark(
            (int(steps.start_ns[index]) - shown.start_ns) / span,
            (int(steps.end_ns[index]) - shown.start_ns) / span,
            f"{_name(steps, index)}: {unit(int(steps.dur_ns[index]))}",
        )
        for index in shown.steps
    )


def _name(steps: Steps, index: int) -> str:
    return "all" if steps.found_by == "whole run" else f"step {index + 1}"


def ticks(shown: Window) -> tuple[Mark, ...]:
    """An axis: a round number of units every sixth of the width or so; the first names the unit."""
    span = max(1, shown.end_ns - shown.start_ns)
    every_ns = _round_up(span / 6)
    unit = _tick_scale(span, every_ns)
    places = np.arange(0, span, every_ns)
    ends = np.append(places[1:], span)

    def label(at: float, end: float) -> str:
        if end - at < 0.07 * span:  # no room for a number before the edge
            return ""
        return unit.number(at) if at else unit(at)

    return tuple(Mark(at / span, end / span, label(at, end)) for at, end in zip(places, ends, strict=True))


def _tick_scale(span_ns: float, every_ns: float) -> Scale:
    longest = scale(span_ns)
    decimals = max(0, -int(np.floor(np.log10(every_ns / longest.unit_ns) + 1e-9)))
    return Scale(longest.unit_ns, longest.unit, decimals)


def _round_up(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 ... that is at least this."""
    power = 10.0 ** np.floor(np.log10(max(least, 1.0)))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9)))


def legend(
    ledger: Ledger, drawn: tuple[Lane, ...], shown: Window, least_frac: float = WORTH_A_KEY_FRAC
) -> tuple[tuple[str, str], ...]:
    """What the colours in the picture mean, in the order of the ledger; those with less than a share are left out."""
    least_ns = least_frac * (shown.end_ns - shown.start_ns)
    seen = {key for lane in drawn for key, spans in lane.parts if shading(spans, shown).total_ns >= least_ns}
    return tuple((part.key, LEGEND.get(part.key, part.label)) for part in ledger.parts if part.key in seen)


# A lane shows all of a thing, the ledger only what is exposed of it: where the ledger's label says so, another is due.
LEGEND = {"communication": "communication", "copies": "copies", "sync": "synchronising call"}


def _table(ledger: Ledger, steps: Steps, shown: Window) -> Table:
    """The same steps as numbers: each part that matters in any of them, in ms."""
    rows = _rows(steps, shown)
    total = sum(int(ledger.step_ns[row]) for row in rows)
    parts = [
        part
        for part in ledger.parts
        if sum(int(ledger.part_ns[part.key][row]) for row in rows) >= WORTH_SAYING_FRAC * total
    ]
    unit = scale(max(int(ledger.step_ns[row]) for row in rows), figures=4)
    body = [
        Row((part.label, *(unit.number(int(ledger.part_ns[part.key][row])) for row in rows)), key=part.key)
        for part in parts
    ]
    rest = [int(ledger.step_ns[row]) - sum(int(ledger.part_ns[part.key][row]) for part in parts) for row in rows]
    if any(rest):
        body.append(Row(("all else", *map(unit.number, rest)), key="rest"))
    body.append(Row(("in all", *(unit.number(int(ledger.step_ns[row])) for row in rows)), kind="total"))
    header = (unit.unit, *(_name(steps, index) for index in shown.steps))
    return Table(header=header, rows=tuple(body))


def _rows(steps: Steps, shown: Window) -> list[int]:
    """Where the shown steps are in the ledger, which has a row for each interior step of some length, in order."""
    judged = np.flatnonzero(steps.interior & (steps.end_ns > steps.start_ns)).tolist()
    return [judged.index(index) for index in shown.steps]


def _alt(ledger: Ledger, steps: Steps, shown: Window) -> str:
    """The picture in a sentence, from the numbers it is drawn from."""
    rows = _rows(steps, shown)
    total_ns = max(1, int(ledger.step_ns[rows].sum()))
    named = [(int(ledger.part_ns[part.key][rows].sum()) / total_ns, part.label) for part in ledger.parts]
    largest = ", ".join(f"{label} {percent(frac)}" for frac, label in sorted(named, reverse=True)[:3] if frac > 0)
    first, last = shown.steps[0] + 1, shown.steps[-1] + 1
    which = _name(steps, shown.steps[0]) if first == last else f"steps {first} to {last}"
    length = duration(shown.end_ns - shown.start_ns)
    return sentence(f"Timeline of {which}, {length} in all. Most time goes to: {largest}")
