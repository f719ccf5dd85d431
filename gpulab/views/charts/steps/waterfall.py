"""Several runs in a row: the mean step of each as a bar, and between two runs the change of each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gpulab.analysis.steps.ledger import Ledger
from gpulab.run import Run
from gpulab.views.charts.drawing.axes import (
    bar_rows,
    label_bar_end,
    label_time_axis,
    missing_events_chart,
    steps_and_ledger,
)
from gpulab.views.charts.drawing.chart import Chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, Style
from gpulab.views.charts.drawing.text_layout import shorten_to_width
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, clean, ratio, scale

SUBJECT = "Change of the step time from run to run"
MAX_PARTS = 4  # with a separate bar between two runs
MIN_PART_FRAC = 0.01  # of the longest step
MAX_RUNS = 8
GREW_HATCH = "xxxx"
NAME_IN = 1.9


@dataclass(frozen=True)
class _Side:
    """One run: its name, its mean step, and its parts."""

    name: str
    step_ns: float
    part_ns: dict[str, float]
    labels: dict[str, str]


@dataclass(frozen=True)
class _Bar:
    """One row of the picture: the step of a run, or the change of a part."""

    name: str
    start_ns: float
    ns: float  # negative if the part became shorter
    key: str  # "" for a step


def run_waterfall(runs: Sequence[Run]) -> Chart:
    """Show the mean recorded step of each run, and the parts that changed between runs; `ledger` of several runs.

    From gpulab.analysis.steps.ledger: the changes sum to the difference exactly. Whether a difference is above the
    noise is not shown: gpulab.compare judges it from steps without the profiler.
    """
    sides = []
    for run in runs:
        _, accounts = steps_and_ledger(run)
        if accounts is None:
            return missing_events_chart(run, f"{SUBJECT} ({clean(run.name, 40)})")
        sides.append(_side(run, accounts))
    first_and_last = sides if len(sides) <= MAX_RUNS else [*sides[: MAX_RUNS - 1], sides[-1]]
    unit = scale(max(side.step_ns for side in sides), figures=4)
    bars = _bars(first_and_last)
    omission = (
        f" {len(sides) - len(first_and_last)} runs before the last are not shown."
        if len(first_and_last) < len(sides)
        else ""
    )

    def draw(axes: Axes) -> None:
        _draw(axes, bars, unit)
        axes.set_xlabel(f"{unit.unit} per step (mean of the complete recorded steps, with the profiler on)")

    return single_plot(
        _answer(sides, unit),
        draw,
        source=tuple(runs),
        alt=_alt(first_and_last, unit) + omission,
        table=_table(first_and_last, unit, omission),
        height_in=1.75 + 0.25 * len(bars),
    )


def _side(run: Run, accounts: Ledger) -> _Side:
    part_ns = {part.key: float(accounts.sum_ns(part.key).mean()) for part in accounts.parts}
    labels = {part.key: part.label for part in accounts.parts}
    return _Side(clean(run.name, 40), float(accounts.step_ns.mean()), part_ns, labels)


def _changes(before: _Side, after: _Side) -> list[tuple[str, str, float]]:
    """Return key, label and change of each part of either run."""
    labels = before.labels | after.labels
    return [(key, label, after.part_ns.get(key, 0.0) - before.part_ns.get(key, 0.0)) for key, label in labels.items()]


def _bars(sides: Sequence[_Side]) -> list[_Bar]:
    longest = max(side.step_ns for side in sides)
    bars = [_Bar(sides[0].name, 0.0, sides[0].step_ns, "")]
    for before, after in pairwise(sides):
        changes = sorted(_changes(before, after), key=lambda change: -abs(change[2]))
        largest = [each for each in changes[:MAX_PARTS] if abs(each[2]) >= MIN_PART_FRAC * longest]
        start_ns = before.step_ns
        for key, label, change_ns in largest:
            bars.append(_Bar(label, start_ns, change_ns, key))
            start_ns += change_ns
        rest = after.step_ns - start_ns
        if abs(rest) >= 1e-4 * longest:
            bars.append(_Bar("all else", start_ns, rest, "rest"))
        bars.append(_Bar(after.name, 0.0, after.step_ns, ""))
    return bars


def _draw(axes: Axes, bars: Sequence[_Bar], unit: Scale) -> None:
    longest = max(max(bar.start_ns, bar.start_ns + bar.ns) for bar in bars)
    for row, bar in enumerate(bars):
        left, right = sorted((bar.start_ns, bar.start_ns + bar.ns))
        if not bar.key:
            axes.barh(row, right - left, left=left, height=0.8, color="#4B5560", linewidth=0)
            label_bar_end(axes, right, row, unit(bar.ns), fontweight="bold")
            continue
        style: Style = {"hatch": GREW_HATCH, "edgecolor": BACKGROUND} if bar.ns > 0 else {}
        axes.barh(row, right - left, left=left, height=0.62, facecolor=colour(bar.key), linewidth=0, **style)
        label_bar_end(axes, right, row, f"{unit.signed_number(round(bar.ns))} {unit.unit}")
    names = [shorten_to_width(bar.name if not bar.key else f"   {bar.name}", NAME_IN, 8.5) for bar in bars]
    bar_rows(axes, names, longest * 1.17)
    for tick, bar in zip(axes.get_yticklabels(), bars, strict=True):
        tick.set_fontweight("normal" if bar.key else "bold")
    label_time_axis(axes.xaxis, unit)
    keys = [Patch(facecolor=NEUTRAL), Patch(facecolor=NEUTRAL, edgecolor=BACKGROUND, hatch=GREW_HATCH, linewidth=0)]
    axes.legend(keys, ["shorter", "longer"], loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1)


def _answer(sides: Sequence[_Side], unit: Scale) -> str:
    first, last = sides[0], sides[-1]
    _, label, change_ns = max(_changes(first, last), key=lambda change: abs(change[2]))
    if last.step_ns <= first.step_ns:
        pace = f"{ratio(first.step_ns / last.step_ns)} as fast"
    else:
        pace = f"{ratio(last.step_ns / first.step_ns)} the step time"
    steps = f"{unit(first.step_ns)} to {unit(last.step_ns)} per recorded step"
    largest = f", mostly {label} ({unit.signed_number(round(change_ns))} {unit.unit})" if round(change_ns) else ""
    return f"{last.name} against {first.name}: {pace}, {steps}{largest}"


def _alt(sides: Sequence[_Side], unit: Scale) -> str:
    texts = [f"A waterfall chart. {sides[0].name} takes {unit(sides[0].step_ns)} per recorded step"]
    for before, after in pairwise(sides):
        changes = sorted(_changes(before, after), key=lambda change: -abs(change[2]))[:3]
        parts = ", ".join(
            f"{label} {unit.signed_number(round(ns))} {unit.unit}" for _, label, ns in changes if round(ns)
        )
        texts.append(f"{after.name} {unit(after.step_ns)}{f' ({parts})' if parts else ''}")
    return "; ".join(texts) + ". Means of recorded steps; gpulab.compare judges whether they differ by more than noise."


def _table(sides: Sequence[_Side], unit: Scale, omission: str) -> TableBlock:
    labels: dict[str, str] = {}
    for side in sides:
        labels |= side.labels
    rows = [
        Row((label, *(unit.number(side.part_ns.get(key, 0.0)) for side in sides)), key)
        for key, label in labels.items()
        if any(side.part_ns.get(key) for side in sides)
    ]
    rows.append(Row(("step", *(unit.number(side.step_ns) for side in sides)), kind="total"))
    header = (f"{unit.unit} per step", *(side.name for side in sides))
    caption = f"Means of the complete recorded steps; the parts sum to the step time.{omission}"
    return TableBlock(header=header, rows=tuple(rows), caption=caption)
