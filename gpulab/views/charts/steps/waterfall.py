"""Several runs one after another: each step as a bar, and between two bars what every part gave or took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gpulab.analysis.steps.ledger import Ledger
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, chart
from gpulab.views.charts.drawing.lettering import fitting
from gpulab.views.charts.drawing.steps_and_ledger import accounted, bar_rows, beside, in_unit, without_events
from gpulab.views.charts.drawing.style import PAPER, Dress
from gpulab.views.compare.changes import signed
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import Scale, clean, ratio, scale

WHAT = "What changed from run to run"
MOST_NAMED = 4  # parts between two runs that have a bar of their own
NAMED_FRAC = 0.01  # of the longest step
MOST_RUNS = 8
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
    """One line of the picture: the whole step of a run, or what a part changed by."""

    name: str
    start_ns: float
    ns: float  # negative where less is taken
    key: str  # "" for a whole step


def waterfall(runs: Sequence[Run]) -> Chart:
    """Each run's mean recorded step, and between two of them the parts that changed; `ledger` of several runs.

    From gpulab.analysis.steps.ledger: the changes sum to the difference exactly. It cannot show whether a difference
    is more than noise: gpulab.compare tells that from the steps without the profiler.
    """
    sides = []
    for run in runs:
        _, accounts = accounted(run)
        if accounts is None:
            return without_events(run, f"{WHAT} ({clean(run.name, 40)})")
        sides.append(_side(run, accounts))
    shown = sides if len(sides) <= MOST_RUNS else [*sides[: MOST_RUNS - 1], sides[-1]]
    unit = scale(max(side.step_ns for side in sides), figures=4)
    bars = _bars(shown)
    left_out = f" {len(sides) - len(shown)} runs before the last are left out." if len(shown) < len(sides) else ""

    def draw(axes: Axes) -> None:
        _draw(axes, bars, unit)
        axes.set_xlabel(f"{unit.unit} per step (mean of the recorded interior steps, with the profiler on)")

    return chart(
        _answer(sides, unit),
        draw,
        source=tuple(runs),
        alt=_alt(shown, unit) + left_out,
        table=_table(shown, unit, left_out),
        height_in=1.75 + 0.25 * len(bars),
    )


def _side(run: Run, accounts: Ledger) -> _Side:
    part_ns = {part.key: float(accounts.of(part.key).mean()) for part in accounts.parts}
    labels = {part.key: part.label for part in accounts.parts}
    return _Side(clean(run.name, 40), float(accounts.step_ns.mean()), part_ns, labels)


def _changes(before: _Side, after: _Side) -> list[tuple[str, str, float]]:
    """Key, label and change of each part of either."""
    labels = before.labels | after.labels
    return [(key, label, after.part_ns.get(key, 0.0) - before.part_ns.get(key, 0.0)) for key, label in labels.items()]


def _bars(sides: Sequence[_Side]) -> list[_Bar]:
    longest = max(side.step_ns for side in sides)
    bars = [_Bar(sides[0].name, 0.0, sides[0].step_ns, "")]
    for before, after in pairwise(sides):
        changes = sorted(_changes(before, after), key=lambda each: -abs(each[2]))
        named = [each for each in changes[:MOST_NAMED] if abs(each[2]) >= NAMED_FRAC * longest]
        at = before.step_ns
        for key, label, moved in named:
            bars.append(_Bar(label, at, moved, key))
            at += moved
        rest = after.step_ns - at
        if abs(rest) >= 1e-4 * longest:
            bars.append(_Bar("all else", at, rest, "rest"))
        bars.append(_Bar(after.name, 0.0, after.step_ns, ""))
    return bars


def _draw(axes: Axes, bars: Sequence[_Bar], unit: Scale) -> None:
    longest = max(max(bar.start_ns, bar.start_ns + bar.ns) for bar in bars)
    for place, bar in enumerate(bars):
        left, right = sorted((bar.start_ns, bar.start_ns + bar.ns))
        if not bar.key:
            axes.barh(place, right - left, left=left, height=0.8, color="#4B5560", linewidth=0)
            beside(axes, right, place, unit(bar.ns), fontweight="bold")
            continue
        dress: Dress = {"hatch": GREW_HATCH, "edgecolor": PAPER} if bar.ns > 0 else {}
        axes.barh(place, right - left, left=left, height=0.62, facecolor=colour(bar.key), linewidth=0, **dress)
        beside(axes, right, place, f"{signed(unit, round(bar.ns))} {unit.unit}")
    names = [fitting(bar.name if not bar.key else f"   {bar.name}", NAME_IN, 8.5) for bar in bars]
    bar_rows(axes, names, longest * 1.17)
    for tick, bar in zip(axes.get_yticklabels(), bars, strict=True):
        tick.set_fontweight("normal" if bar.key else "bold")
    in_unit(axes.xaxis, unit)
    keys = [Patch(facecolor=NEUTRAL), Patch(facecolor=NEUTRAL, edgecolor=PAPER, hatch=GREW_HATCH, linewidth=0)]
    axes.legend(
        keys, ["takes less", "takes more"], loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1
    )


def _answer(sides: Sequence[_Side], unit: Scale) -> str:
    first, last = sides[0], sides[-1]
    _, label, moved = max(_changes(first, last), key=lambda each: abs(each[2]))
    if last.step_ns <= first.step_ns:
        pace = f"{ratio(first.step_ns / last.step_ns)} as fast"
    else:
        pace = f"{ratio(last.step_ns / first.step_ns)} the time"
    steps = f"{unit(first.step_ns)} to {unit(last.step_ns)} a recorded step"
    most = f", most by {label} ({signed(unit, round(moved))} {unit.unit})" if round(moved) else ""
    return f"{last.name} against {first.name}: {pace}, {steps}{most}"


def _alt(sides: Sequence[_Side], unit: Scale) -> str:
    told = [f"A waterfall. {sides[0].name} takes {unit(sides[0].step_ns)} a recorded step"]
    for before, after in pairwise(sides):
        changes = sorted(_changes(before, after), key=lambda each: -abs(each[2]))[:3]
        moved = ", ".join(f"{label} {signed(unit, round(ns))} {unit.unit}" for _, label, ns in changes if round(ns))
        told.append(f"{after.name} {unit(after.step_ns)}{f' ({moved})' if moved else ''}")
    return "; ".join(told) + ". Means of recorded steps: whether that is more than noise, gpulab.compare tells."


def _table(sides: Sequence[_Side], unit: Scale, left_out: str) -> Table:
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
    caption = f"Means of the recorded interior steps; the parts sum to the step.{left_out}"
    return Table(header=header, rows=tuple(rows), caption=caption)
