"""The first part of a report as one picture, for places without HTML: verdict, gain, ledger, a few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle, StepPatch

from gpulab.rules.engine.finding import Diagnosis, Gain
from gpulab.views.charts.drawing.axes import WHOLE_RUN, label_axis
from gpulab.views.charts.drawing.chart import WIDTH_IN, Chart, combined_source
from gpulab.views.charts.drawing.style import (
    BACKGROUND,
    SMALL_PT,
    SOFT_COLOUR,
    TEXT_COLOUR,
    TITLE_PT,
    Style,
    chart_style,
)
from gpulab.views.charts.drawing.text_layout import break_lines, text_width_in
from gpulab.views.report.headline import headline
from gpulab.views.report.ledger_table import how_to_mark_steps, ledger_bar, ledger_blocks, method_of
from gpulab.views.sheet.lanes import Lane, Window, clip_to_window, middle_window, timeline_lanes
from gpulab.views.sheet.palette import NEUTRAL, PREDICTED, UNCERTAIN, colour
from gpulab.views.sheet.sheet import Answer, Segment, TableBlock
from gpulab.views.sheet.step_picture import covered_fractions, step_timeline
from gpulab.wording import clean, percent, scale, sentence, shorten

BINS = 600  # of the picture of a few steps: about one per pixel
MAX_CODE, MAX_COLUMNS, MAX_EVIDENCE, MAX_KEYS, MAX_OTHERS = 6, 96, 3, 9, 4
IDLE_HATCH, UNCERTAIN_HATCH = "////", "...."
TEXT_PT, CODE_PT, KEY_PT = 9.5, 8.0, 8.0
LEFT_IN, GAP_IN, LINE_IN, CODE_IN, KEYS_IN, SOURCE_IN = 0.0864, 0.13, 0.178, 0.152, 0.175, 0.14


@dataclass(frozen=True)
class _Block:
    """One part of the picture: its height, the function that draws it, and the margins of its axes."""

    height_in: float
    draw: Callable[[Axes], None]
    above_in: float = 0.0
    below_in: float = 0.0
    left_in: float = 0.0
    right_in: float = LEFT_IN


def report_png(diagnosis: Diagnosis) -> bytes:
    """Return the first part of the report of a diagnosis as PNG."""
    return report_chart(diagnosis).png()


def report_chart(diagnosis: Diagnosis) -> Chart:
    """Return the first part of the report as a chart, which can be saved in other formats."""
    answer = headline(diagnosis)
    with chart_style():
        blocks = [
            block
            for make in (_evidence_and_fix, _gain, _ledger, _steps)
            if (block := make(diagnosis, answer)) is not None
        ]
        title_in = 0.16 + 0.2 * (break_lines(WIDTH_IN, answer.claim, TITLE_PT, weight="bold").count("\n") + 1)
        source_line = break_lines(WIDTH_IN, f"Source: {combined_source(diagnosis.run)}", SMALL_PT, weight="bold")
        source_in = 0.06 + SOURCE_IN * (source_line.count("\n") + 1)
        height_in = title_in + sum(block.height_in + GAP_IN for block in blocks) + source_in
        alt, table = _alt(diagnosis, answer), _table(diagnosis)
        figure = Chart(answer.claim, source=combined_source(diagnosis.run), alt=alt, table=table, height_in=height_in)
        # All positions are computed here, so matplotlib must not rearrange anything.
        figure.set_layout_engine("none")
        figure.place_frame(top_in=0.1, bottom_in=0.07)
        top_in = height_in - title_in
        for block in blocks:
            bottom = top_in - block.height_in + block.below_in
            plot_in = block.height_in - block.above_in - block.below_in
            left = LEFT_IN + block.left_in
            position = (
                left / WIDTH_IN,
                bottom / height_in,
                (WIDTH_IN - left - block.right_in) / WIDTH_IN,
                plot_in / height_in,
            )
            block.draw(figure.add_axes(position))
            top_in -= block.height_in + GAP_IN
    return figure


# Evidence and fix.


def _evidence_and_fix(diagnosis: Diagnosis, answer: Answer) -> _Block | None:
    """Return the evidence and the fix."""
    code = [line for line in answer.fix.splitlines() if line.strip()]
    fix = [shorten(clean(line, 400), MAX_COLUMNS) for line in code[:MAX_CODE]] + ["..."] * (len(code) > MAX_CODE)
    lines = [*answer.evidence[:MAX_EVIDENCE], *([answer.advice] if answer.advice and not fix else [])]
    text = "\n".join(break_lines(WIDTH_IN, clean(line, 400), TEXT_PT) for line in lines)
    rows = text.count("\n") + 1 if text else 0
    if not rows and not fix:
        return None
    text_in, code_in = LINE_IN * rows, (CODE_IN * len(fix) + 0.16 if fix else 0.0)

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        total_in = text_in + code_in
        axes.set(xlim=(0, WIDTH_IN - 2 * LEFT_IN), ylim=(0, total_in))
        style: Style = {"va": "top", "ha": "left", "color": TEXT_COLOUR}
        axes.text(0, total_in, text, fontsize=TEXT_PT, linespacing=1.35, **style)
        if fix:
            axes.add_patch(Rectangle((0, 0), WIDTH_IN - 2 * LEFT_IN, code_in - 0.05, facecolor="#EDEFF1", linewidth=0))
            mono: Style = {"family": "DejaVu Sans Mono", "fontsize": CODE_PT, "linespacing": 1.35}
            axes.text(0.08, code_in - 0.11, "\n".join(fix), **mono, **style)

    return _Block(text_in + code_in, draw)


def _alt(diagnosis: Diagnosis, answer: Answer) -> str:
    few_steps = step_timeline(diagnosis)
    sentences = [*answer.evidence[:MAX_EVIDENCE]]
    sentences += [f"{name}: {value}" for name, value in answer.facts]
    if diagnosis.ledger is not None:
        sentences.append(ledger_bar(diagnosis.ledger, "Where the step time goes", step=diagnosis.step).title)
    if few_steps is not None:
        sentences.append(few_steps.alt)
    return " ".join(map(sentence, sentences))


def _table(diagnosis: Diagnosis) -> TableBlock:
    if diagnosis.ledger is None or diagnosis.step is None:
        return TableBlock(header=("", ""), rows=())
    looped, method = diagnosis.steps.detected_by != WHOLE_RUN, method_of(diagnosis.run, diagnosis.steps)
    blocks = ledger_blocks(
        diagnosis.ledger, diagnosis.step, has_steps=looped, method=method, marking=how_to_mark_steps(diagnosis.run)
    )
    return next(block for block in blocks if isinstance(block, TableBlock))


# Expected gain.


def _gain(diagnosis: Diagnosis, answer: Answer) -> _Block | None:
    """Draw the gain expected from the first fix: remaining, uncertain and saved time, and the bound."""
    first = diagnosis.first
    if first is None or first.gain is None or answer.expectation is None:
        return None
    gain: Gain = first.gain
    facts = (f"{name}: {value}".replace(" -> ", " \N{RIGHTWARDS ARROW} ") for name, value in answer.facts)
    text = "\n".join(break_lines(WIDTH_IN, fact, TEXT_PT) for fact in facts)
    unit = scale(gain.step_ns)

    def draw(axes: Axes) -> None:
        parts = (
            (f"remaining ({unit(gain.best_ns)})", 0, gain.best_ns, {"facecolor": PREDICTED, "edgecolor": PREDICTED}),
            (
                "uncertain",
                gain.best_ns,
                gain.worst_ns,
                {"facecolor": UNCERTAIN, "edgecolor": BACKGROUND, "hatch": UNCERTAIN_HATCH},
            ),
            ("saved", gain.worst_ns, gain.step_ns, {"facecolor": "none", "edgecolor": NEUTRAL, "linestyle": "--"}),
        )
        for name, start, end, style in parts:
            if end > start:
                axes.barh(0, end - start, left=start, height=0.8, label=name, linewidth=0.8, **style)  # type: ignore[arg-type]
        axes.plot(
            [gain.floor_ns] * 2, [-0.6, 0.6], color=TEXT_COLOUR, linewidth=1.8, label=f"bound ({unit(gain.floor_ns)})"
        )
        axes.set(xlim=(0, max(gain.step_ns, gain.worst_ns)), ylim=(-0.62, 0.62))
        _hide_frame(axes)
        axes.set_title(text, loc="left", fontsize=TEXT_PT, color=TEXT_COLOUR, pad=6, linespacing=1.35)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.004, 0.0), ncols=4, borderaxespad=0.1, **_KEYS)

    above_in = LINE_IN * (text.count("\n") + 1) + 0.06
    return _Block(above_in + 0.2 + KEYS_IN, draw, above_in, KEYS_IN)


_KEYS: Style = {
    "handlelength": 1.2,
    "handletextpad": 0.5,
    "columnspacing": 1.4,
    "labelspacing": 0.3,
    "fontsize": KEY_PT,
}


def _hide_frame(axes: Axes) -> None:
    axes.set_yticks([])
    axes.set_xticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


# The ledger.


def _ledger(diagnosis: Diagnosis, _: Answer) -> _Block | None:
    """Draw the ledger as one bar with its largest parts labelled."""
    ledger, step = diagnosis.ledger, diagnosis.step
    if ledger is None or step is None:
        return None
    bar = ledger_bar(ledger, "", step=step)
    segments, busy_frac = bar.segments, bar.groups[0].frac
    heading = "Where the time goes" if diagnosis.steps.detected_by == WHOLE_RUN else "Where the step time goes"
    unit = scale(float(step.step_ns))
    names = ", ".join(f"{group.label.split(' (')[0]} {percent(group.frac, 1)}" for group in bar.groups)
    labelled = _labelled(segments)

    def draw(axes: Axes) -> None:
        x, keys = 0.0, []
        for segment in segments:
            style: Style = {"facecolor": colour(segment.key), "edgecolor": BACKGROUND, "linewidth": 0}
            idle = x >= busy_frac - 1e-9  # busy parts come first
            style |= {"hatch": IDLE_HATCH} if idle else {}
            axes.barh(0, segment.frac, left=x, height=0.8, **style)
            if segment in labelled:
                label = segment.label if segment.key != "rest" else ("other idle time" if idle else "other busy time")
                keys.append(Patch(label=f"{label} {percent(segment.frac, 1)}", **style))
            x += segment.frac
        axes.set(xlim=(0, max(x, 1e-9)), ylim=(-0.5, 0.5))
        _hide_frame(axes)
        title = f"{heading}: {unit(float(step.step_ns))}, {names} (hatched)"
        axes.set_title(title, loc="left", fontsize=TEXT_PT, color=TEXT_COLOUR, pad=5, fontweight="bold")
        axes.legend(
            handles=keys, loc="upper left", bbox_to_anchor=(-0.004, 0.0), ncols=3, borderaxespad=0.1, **_KEYS,
        )  # fmt: skip

    below_in = KEYS_IN * -(-len(labelled) // 3)
    return _Block(0.24 + 0.28 + below_in, draw, 0.24, below_in)


def _labelled(segments: Sequence[Segment]) -> list[Segment]:
    """Return the parts with a legend entry below the bar."""
    return sorted(segments, key=lambda segment: -segment.frac)[:MAX_KEYS]


# A few steps.


def _steps(diagnosis: Diagnosis, _: Answer) -> _Block | None:
    """Draw the lanes of a few steps."""
    time_window = middle_window(diagnosis.steps)
    if time_window is None or diagnosis.ledger is None:
        return None
    few_lanes = timeline_lanes(diagnosis.run, diagnosis.ledger, time_window)
    few_steps, first = step_timeline(diagnosis), diagnosis.first
    in_ledger_legend = {
        segment.key for segment in _labelled(ledger_bar(diagnosis.ledger, "", step=diagnosis.step).segments)
    }
    others = [(key, label) for key, label in few_steps.legend if key not in in_ledger_legend] if few_steps else []
    shade = clip_to_window(first.spans, time_window) if first else None
    unit = scale(float(time_window.end_ns - time_window.start_ns))

    def draw(axes: Axes) -> None:
        edges = np.linspace(time_window.start_ns, time_window.end_ns, BINS + 1).astype(np.int64)
        if shade is not None and len(shade.start_ns):
            coverage = covered_fractions(shade, edges)
            shaded_bins = coverage >= 0.5 if (coverage >= 0.5).any() else coverage > 0
            axes.stairs(
                shaded_bins * float(len(few_lanes)),
                edges - time_window.start_ns,
                fill=True,
                color=colour("loader"),
                alpha=0.2,
                linewidth=0,
            )
        for row, lane in enumerate(few_lanes):
            _lane(axes, lane, edges, time_window, len(few_lanes) - 1 - row)
        for step in time_window.steps:
            axes.axvline(int(diagnosis.steps.start_ns[step]) - time_window.start_ns, color=SOFT_COLOUR, linewidth=0.8)
        axes.set(xlim=(0, time_window.end_ns - time_window.start_ns), ylim=(0, len(few_lanes)))
        axes.set_yticks(
            [len(few_lanes) - 0.5 - row for row in range(len(few_lanes))], [clean(lane.name, 24) for lane in few_lanes]
        )
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
        label_axis(axes.xaxis, unit.unit_ns)
        axes.set_xlabel(unit.unit, labelpad=1, loc="left")
        _others(axes, others, 0.28 * len(few_lanes))
        shaded = "; shaded: evidence of the verdict" if shade is not None and len(shade.start_ns) else ""
        axes.set_title(f"colours as in the ledger{shaded}", loc="right", fontsize=KEY_PT, color=SOFT_COLOUR, pad=5)
        title = "The whole recording" if diagnosis.steps.detected_by == WHOLE_RUN else _step_range(time_window)
        axes.set_title(title, loc="left", fontsize=TEXT_PT, color=TEXT_COLOUR, pad=5, fontweight="bold")

    left_in = 0.12 + max(text_width_in(clean(lane.name, 24), 8.5) for lane in few_lanes)
    return _Block(
        0.24 + 0.28 * len(few_lanes) + 0.42, draw, 0.24, 0.42, left_in, 0.25
    )  # half of a number may be to the right of the last tick


def _lane(axes: Axes, lane: Lane, edges: np.ndarray, time_window: Window, floor: int) -> None:
    """Draw a lane; the height of a colour is its fraction of the time bin."""
    low = np.full(len(edges) - 1, floor + 0.08)
    x = edges - time_window.start_ns
    _columns(axes, low + 0.84, x, low, color=NEUTRAL, alpha=0.16)
    for key, spans in lane.parts:
        high = np.minimum(low + 0.84 * covered_fractions(spans, edges), floor + 0.92)
        if (high > low).any():
            _columns(axes, high, x, low, color=colour(key))
        low = high


def _columns(axes: Axes, high: np.ndarray, x: np.ndarray, low: np.ndarray, **style: Any) -> None:
    """Draw columns like Axes.stairs, without its computation of limits, which takes longer than drawing."""
    baseline: Any = low  # an array, which matplotlib's types do not allow
    axes.add_artist(StepPatch(high, x, baseline=baseline, fill=True, linewidth=0, rasterized=True, **style))


def _others(axes: Axes, others: Sequence[tuple[str, str]], height_in: float) -> None:
    """Add a legend of colours that the ledger's legend lacks: work hidden behind other work is not in the ledger."""
    if others:
        keys = [Patch(facecolor=colour(key), label=label, linewidth=0) for key, label in others[:MAX_OTHERS]]
        position: Style = {"loc": "upper right", "bbox_to_anchor": (1.005, -0.24 / height_in), "borderaxespad": 0.0}
        axes.legend(handles=keys, ncols=MAX_OTHERS, **position, **_KEYS)


def _step_range(time_window: Window) -> str:
    first, last = time_window.steps[0] + 1, time_window.steps[-1] + 1
    return f"Step {first}" if first == last else f"Steps {first} to {last}"
