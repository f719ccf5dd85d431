"""The head of a report as one picture, to paste where no HTML survives: verdict, gain, ledger, and a few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle, StepPatch

from gpulab.rules.engine.finding import Diagnosis, Gain
from gpulab.views.charts.drawing.chart import WIDTH_IN, Chart, sources
from gpulab.views.charts.drawing.lettering import broken, width_in
from gpulab.views.charts.drawing.steps_and_ledger import LOOPLESS, by
from gpulab.views.charts.drawing.style import INK, PAPER, SMALL_PT, SOFT, TITLE_PT, Dress, dressed
from gpulab.views.report.headline import headline
from gpulab.views.report.ledger_table import DEVICE, accounts, bar
from gpulab.views.sheet.lanes import Lane, Window, lanes, shading, window
from gpulab.views.sheet.palette import ACCENT, ACCENT_PALE, NEUTRAL, colour
from gpulab.views.sheet.sheet import Answer, Segment, Table
from gpulab.views.sheet.step_picture import filled, picture
from gpulab.wording import clean, percent, scale, sentence, shorten

BINS = 600  # of the picture of a few steps: more would be finer than its pixels
MOST_CODE, MOST_COLUMNS, MOST_EVIDENCE, MOST_KEYS, MOST_OTHERS = 6, 96, 3, 9, 4
IDLE_HATCH, PERHAPS_HATCH = "////", "...."
TEXT_PT, CODE_PT, KEY_PT = 9.5, 8.0, 8.0
LEFT_IN, GAP_IN, LINE_IN, CODE_IN, KEYS_IN, SOURCE_IN = 0.0864, 0.13, 0.178, 0.152, 0.175, 0.14


@dataclass(frozen=True)
class _Block:
    """One part of the picture: its height, what draws it, and what its axes leave free above, below and on the left."""

    height_in: float
    draw: Callable[[Axes], None]
    above_in: float = 0.0
    below_in: float = 0.0
    left_in: float = 0.0
    right_in: float = LEFT_IN


def png(diagnosis: Diagnosis) -> bytes:
    """The head of the report of a diagnosis as PNG."""
    return head(diagnosis).png()


def head(diagnosis: Diagnosis) -> Chart:
    """The same as a chart, which can be saved in other formats."""
    answer = headline(diagnosis)
    with dressed():
        blocks = [block for make in (_words, _gain, _ledger, _steps) if (block := make(diagnosis, answer)) is not None]
        title_in = 0.16 + 0.2 * (broken(WIDTH_IN, answer.claim, TITLE_PT, weight="bold").count("\n") + 1)
        below = broken(WIDTH_IN, f"Source: {sources(diagnosis.run)}", SMALL_PT, weight="bold")
        source_in = 0.06 + SOURCE_IN * (below.count("\n") + 1)
        height_in = title_in + sum(block.height_in + GAP_IN for block in blocks) + source_in
        told, table = _alt(diagnosis, answer), _table(diagnosis)
        made = Chart(answer.claim, source=sources(diagnosis.run), alt=told, table=table, height_in=height_in)
        # What stands where is known here to the line: nothing is left to be arranged.
        made.set_layout_engine("none")
        made.place_frame(top_in=0.1, bottom_in=0.07)
        top_in = height_in - title_in
        for block in blocks:
            bottom = top_in - block.height_in + block.below_in
            tall = block.height_in - block.above_in - block.below_in
            left = LEFT_IN + block.left_in
            place = (
                left / WIDTH_IN,
                bottom / height_in,
                (WIDTH_IN - left - block.right_in) / WIDTH_IN,
                tall / height_in,
            )
            block.draw(made.add_axes(place))
            top_in -= block.height_in + GAP_IN
    return made


# The words.


def _words(diagnosis: Diagnosis, answer: Answer) -> _Block | None:
    """What shows the verdict, and what to do."""
    code = [line for line in answer.fix.splitlines() if line.strip()]
    fix = [shorten(clean(line, 400), MOST_COLUMNS) for line in code[:MOST_CODE]] + ["..."] * (len(code) > MOST_CODE)
    told = [*answer.evidence[:MOST_EVIDENCE], *([answer.advice] if answer.advice and not fix else [])]
    plain = "\n".join(broken(WIDTH_IN, clean(each, 400), TEXT_PT) for each in told)
    rows = plain.count("\n") + 1 if plain else 0
    if not rows and not fix:
        return None
    words_in, code_in = LINE_IN * rows, (CODE_IN * len(fix) + 0.16 if fix else 0.0)

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        tall = words_in + code_in
        axes.set(xlim=(0, WIDTH_IN - 2 * LEFT_IN), ylim=(0, tall))
        text: Dress = {"va": "top", "ha": "left", "color": INK}
        axes.text(0, tall, plain, fontsize=TEXT_PT, linespacing=1.35, **text)
        if fix:
            axes.add_patch(Rectangle((0, 0), WIDTH_IN - 2 * LEFT_IN, code_in - 0.05, facecolor="#EDEFF1", linewidth=0))
            mono: Dress = {"family": "DejaVu Sans Mono", "fontsize": CODE_PT, "linespacing": 1.35}
            axes.text(0.08, code_in - 0.11, "\n".join(fix), **mono, **text)

    return _Block(words_in + code_in, draw)


def _alt(diagnosis: Diagnosis, answer: Answer) -> str:
    few = picture(diagnosis)
    told = [*answer.evidence[:MOST_EVIDENCE]]
    if answer.expectation:
        told.append(answer.expectation.text)
    if diagnosis.ledger is not None:
        told.append(bar(diagnosis.ledger, "Where a step goes").title)
    if few is not None:
        told.append(few.alt)
    return " ".join(sentence(each) for each in told)


def _table(diagnosis: Diagnosis) -> Table:
    if diagnosis.ledger is None:
        return Table(header=("", ""), rows=())
    blocks = accounts(diagnosis.ledger, looped=diagnosis.steps.found_by != LOOPLESS)
    return next(block for block in blocks if isinstance(block, Table))


# The gain.


def _gain(diagnosis: Diagnosis, answer: Answer) -> _Block | None:
    """What is expected of the first fix: what stays of the step, what may go, what should go, and the bound."""
    first = diagnosis.first
    if first is None or first.gain is None or answer.expectation is None:
        return None
    gain: Gain = first.gain
    told = broken(WIDTH_IN, answer.expectation.text.replace(" -> ", " \N{RIGHTWARDS ARROW} "), TEXT_PT)
    unit = scale(gain.step_ns)

    def draw(axes: Axes) -> None:
        parts = (
            (f"stays ({unit(gain.best_ns)})", 0, gain.best_ns, {"facecolor": ACCENT, "edgecolor": ACCENT}),
            (
                "may go",
                gain.best_ns,
                gain.worst_ns,
                {"facecolor": ACCENT_PALE, "edgecolor": PAPER, "hatch": PERHAPS_HATCH},
            ),
            ("should go", gain.worst_ns, gain.step_ns, {"facecolor": "none", "edgecolor": NEUTRAL, "linestyle": "--"}),
        )
        for name, start, end, look in parts:
            if end > start:
                axes.barh(0, end - start, left=start, height=0.8, label=name, linewidth=0.8, **look)  # type: ignore[arg-type]
        axes.plot([gain.floor_ns] * 2, [-0.6, 0.6], color=INK, linewidth=1.8, label=f"bound ({unit(gain.floor_ns)})")
        axes.set(xlim=(0, gain.step_ns), ylim=(-0.62, 0.62))
        _bare(axes)
        axes.set_title(told, loc="left", fontsize=TEXT_PT, color=INK, pad=6, linespacing=1.35)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.004, 0.0), ncols=4, borderaxespad=0.1, **_KEYS)

    above_in = LINE_IN * (told.count("\n") + 1) + 0.06
    return _Block(above_in + 0.2 + KEYS_IN, draw, above_in, KEYS_IN)


_KEYS: Dress = {
    "handlelength": 1.2,
    "handletextpad": 0.5,
    "columnspacing": 1.4,
    "labelspacing": 0.3,
    "fontsize": KEY_PT,
}


def _bare(axes: Axes) -> None:
    axes.set_yticks([])
    axes.set_xticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


# The ledger.


def _ledger(diagnosis: Diagnosis, _: Answer) -> _Block | None:
    """Where a step goes, as one bar with its parts named."""
    ledger = diagnosis.ledger
    if ledger is None:
        return None
    segments = bar(ledger, "").segments
    whole = "Where the time goes" if diagnosis.steps.found_by == LOOPLESS else "Where a step goes"
    unit = scale(float(ledger.step_ns.mean()))
    names = ", ".join(
        f"{name} {percent(frac, 1)}"
        for name, frac in zip(DEVICE[ledger.device], (ledger.busy_frac, ledger.idle_frac), strict=True)
    )
    named = _named(segments)

    def draw(axes: Axes) -> None:
        at, keys = 0.0, []
        for segment in segments:
            look: Dress = {"facecolor": colour(segment.key), "edgecolor": PAPER, "linewidth": 0}
            idle = at >= ledger.busy_frac - 1e-9  # what works comes first
            look |= {"hatch": IDLE_HATCH} if idle else {}
            axes.barh(0, segment.frac, left=at, height=0.8, **look)
            if segment in named:
                label = segment.label if segment.key != "rest" else ("other idle time" if idle else "other work")
                keys.append(Patch(label=f"{label} {percent(segment.frac, 1)}", **look))
            at += segment.frac
        axes.set(xlim=(0, max(at, 1e-9)), ylim=(-0.5, 0.5))
        _bare(axes)
        title = f"{whole}: {unit(float(ledger.step_ns.mean()))}, {names} (hatched)"
        axes.set_title(title, loc="left", fontsize=TEXT_PT, color=INK, pad=5, fontweight="bold")
        axes.legend(
            handles=keys, loc="upper left", bbox_to_anchor=(-0.004, 0.0), ncols=3, borderaxespad=0.1, **_KEYS,
        )  # fmt: skip

    below_in = KEYS_IN * -(-len(named) // 3)
    return _Block(0.24 + 0.28 + below_in, draw, 0.24, below_in)


def _named(segments: Sequence[Segment]) -> list[Segment]:
    """The parts that have a key under the bar."""
    return sorted(segments, key=lambda segment: -segment.frac)[:MOST_KEYS]


# A few steps.


def _steps(diagnosis: Diagnosis, _: Answer) -> _Block | None:
    """A few steps, lane by lane."""
    shown = window(diagnosis.steps)
    if shown is None or diagnosis.ledger is None:
        return None
    drawn = lanes(diagnosis.run, diagnosis.ledger, shown)
    few, first = picture(diagnosis), diagnosis.first
    known = {segment.key for segment in _named(bar(diagnosis.ledger, "").segments)}
    others = [(key, label) for key, label in few.legend if key not in known] if few else []
    shade = shading(first.shown_by, shown) if first else None
    unit = scale(float(shown.end_ns - shown.start_ns))

    def draw(axes: Axes) -> None:
        edges = np.linspace(shown.start_ns, shown.end_ns, BINS + 1).astype(np.int64)
        if shade is not None and len(shade.start_ns):
            meant = filled(shade, edges)
            wanted = meant >= 0.5 if (meant >= 0.5).any() else meant > 0
            axes.stairs(
                wanted * float(len(drawn)),
                edges - shown.start_ns,
                fill=True,
                color=colour("loader"),
                alpha=0.2,
                linewidth=0,
            )
        for row, lane in enumerate(drawn):
            _lane(axes, lane, edges, shown, len(drawn) - 1 - row)
        for step in shown.steps:
            axes.axvline(int(diagnosis.steps.start_ns[step]) - shown.start_ns, color=SOFT, linewidth=0.8)
        axes.set(xlim=(0, shown.end_ns - shown.start_ns), ylim=(0, len(drawn)))
        axes.set_yticks([len(drawn) - 0.5 - row for row in range(len(drawn))], [clean(lane.name, 24) for lane in drawn])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False)
        by(axes.xaxis, unit.unit_ns)
        axes.set_xlabel(unit.unit, labelpad=1, loc="left")
        _others(axes, others, 0.28 * len(drawn))
        shaded = "; shaded: what the verdict is about" if shade is not None and len(shade.start_ns) else ""
        axes.set_title(f"colours as in the ledger{shaded}", loc="right", fontsize=KEY_PT, color=SOFT, pad=5)
        title = "All that was recorded" if diagnosis.steps.found_by == LOOPLESS else _which(shown)
        axes.set_title(title, loc="left", fontsize=TEXT_PT, color=INK, pad=5, fontweight="bold")

    left_in = 0.12 + max(width_in(clean(lane.name, 24), 8.5) for lane in drawn)
    return _Block(
        0.24 + 0.28 * len(drawn) + 0.42, draw, 0.24, 0.42, left_in, 0.25
    )  # half of a number may stand right of the last tick


def _lane(axes: Axes, lane: Lane, edges: np.ndarray, shown: Window, floor: int) -> None:
    """The height of a colour is its share of that stretch of time."""
    low = np.full(len(edges) - 1, floor + 0.08)
    at = edges - shown.start_ns
    _columns(axes, low + 0.84, at, low, color=NEUTRAL, alpha=0.16)
    for key, spans in lane.parts:
        high = np.minimum(low + 0.84 * filled(spans, edges), floor + 0.92)
        if (high > low).any():
            _columns(axes, high, at, low, color=colour(key))
        low = high


def _columns(axes: Axes, high: np.ndarray, at: np.ndarray, low: np.ndarray, **look: Any) -> None:
    """As Axes.stairs, without its search for what they reach to, which takes longer than to draw them."""
    floor: Any = low  # one for each column, which matplotlib's types do not know of
    axes.add_artist(StepPatch(high, at, baseline=floor, fill=True, linewidth=0, rasterized=True, **look))


def _others(axes: Axes, others: Sequence[tuple[str, str]], tall_in: float) -> None:
    """The colours in the lanes that the ledger's keys do not name: what runs hidden behind other work is not in it."""
    if others:
        keys = [Patch(facecolor=colour(key), label=label, linewidth=0) for key, label in others[:MOST_OTHERS]]
        where: Dress = {"loc": "upper right", "bbox_to_anchor": (1.005, -0.24 / tall_in), "borderaxespad": 0.0}
        axes.legend(handles=keys, ncols=MOST_OTHERS, **where, **_KEYS)


def _which(shown: Window) -> str:
    first, last = shown.steps[0] + 1, shown.steps[-1] + 1
    return f"Step {first}" if first == last else f"Steps {first} to {last}"
