"""Where the step time goes: for one run a cascade that sums to the step, for several runs the change of each part."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, Part
from gpulab.run import Run
from gpulab.views.charts.drawing.axes import (
    WHOLE_RUN,
    bar_rows,
    label_bar_end,
    label_time_axis,
    missing_events_chart,
    step_basis,
    steps_and_ledger,
)
from gpulab.views.charts.drawing.chart import Chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, SOFT_COLOUR, Style
from gpulab.views.charts.steps.waterfall import run_waterfall
from gpulab.views.report.ledger_table import DEVICE_LABELS, MIN_SEGMENT_FRAC
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, percent, scale

SUBJECT = "Where the step time goes"
IDLE_HATCH = "////"
IDLE_WORTH_FRAC = 0.05  # with less idle time the title is about busy time


def ledger(run: Run, *more: Run) -> Chart:
    """Show where the time of a step goes, part by part; for several runs, the change of each part between runs.

    From gpulab.analysis.steps.ledger: means over the interior steps, which sum to the step exactly. The times include
    profiler overhead, mainly in operator calls, so steps without the profiler may be divided differently.
    """
    if more:
        return run_waterfall((run, *more))
    run_steps, accounts = steps_and_ledger(run)
    if accounts is None:
        return missing_events_chart(run, SUBJECT)
    unit = scale(float(accounts.step_ns.mean()), figures=4)
    rows = _rows(accounts)

    def draw(axes: Axes) -> None:
        _draw(axes, accounts, rows, unit)
        axes.set_xlabel(f"{unit.unit} ({step_basis(run, run_steps)})")

    return single_plot(
        _answer(accounts, run_steps, unit),
        draw,
        source=run,
        alt=_alt(accounts, run_steps, unit),
        table=_table(accounts, unit),
        height_in=1.75 + 0.27 * (len(rows) + 1),
    )


def _rows(accounts: Ledger) -> list[tuple[str, str, bool, float]]:
    """Return key, label, busy and ns of each bar: the parts, and the sum of the parts too small for a bar."""
    rows = []
    for busy in (True, False):
        parts = [part for part in accounts.parts if part.busy is busy]
        rows += [_row(accounts, part) for part in parts if accounts.total_frac(part.key) >= MIN_SEGMENT_FRAC]
        slivers = tuple(part.key for part in parts if accounts.total_frac(part.key) < MIN_SEGMENT_FRAC)
        if slivers and accounts.sum_ns(*slivers).any():
            label = "other busy time" if busy else "other idle time"
            rows.append(("rest", label, busy, float(accounts.sum_ns(*slivers).mean())))
    return rows


def _row(accounts: Ledger, part: Part) -> tuple[str, str, bool, float]:
    return part.key, part.label, part.busy, float(accounts.sum_ns(part.key).mean())


def _draw(axes: Axes, accounts: Ledger, rows: list[tuple[str, str, bool, float]], unit: Scale) -> None:
    step_ns, x = float(accounts.step_ns.mean()), 0.0
    last = len(rows)
    for row, (key, _, busy, ns) in enumerate(rows):
        fill = NEUTRAL if key == "rest" else colour(key)
        style: Style = {"color": fill} if busy else {"facecolor": fill, "edgecolor": BACKGROUND, "hatch": IDLE_HATCH}
        axes.barh(row, ns, left=x, height=0.72, linewidth=0, **style)
        axes.barh(last, ns, left=x, height=0.72, linewidth=0, **style)
        x += ns
        axes.plot([x, x], [row + 0.36, row + 0.64], color=SOFT_COLOUR, linewidth=0.8)
        label_bar_end(axes, x, row, f"{unit(ns)}  {percent(ns / step_ns, 1)}")
    label_bar_end(axes, x, last, unit(step_ns), fontweight="bold")
    bar_rows(axes, [*(label for _, label, _, _ in rows), "total"], step_ns * 1.2)
    label_time_axis(axes.xaxis, unit)
    busy_label, idle_label = DEVICE_LABELS[accounts.device]
    keys = [Patch(facecolor=NEUTRAL), Patch(facecolor=NEUTRAL, edgecolor=BACKGROUND, hatch=IDLE_HATCH, linewidth=0)]
    names = [
        f"{name} {percent(frac, 1)}"
        for name, frac in ((busy_label, accounts.busy_frac), (idle_label, accounts.idle_frac))
    ]
    axes.legend(keys, names, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1, handleheight=1.0)


def _answer(accounts: Ledger, run_steps: Steps, unit: Scale) -> str:
    scope = "of the recording" if run_steps.detected_by == WHOLE_RUN else "of each step"
    step_ns = float(accounts.step_ns.mean())
    idle = accounts.idle_frac >= IDLE_WORTH_FRAC
    largest = max(
        (part for part in accounts.parts if part.busy is not idle), key=lambda part: accounts.total_frac(part.key)
    )
    states = {("gpu", True): "GPU idle", ("gpu", False): "GPU busy", ("cpu", True): "Not computing"}
    state = states.get((accounts.device, idle), "Computing")
    share = percent(accounts.idle_frac if idle else accounts.busy_frac)
    time = f"{unit(float(accounts.sum_ns(largest.key).mean()))} of {unit(step_ns)}"
    if accounts.device == "cpu" and not idle:
        return f"{state} {share} {scope}: {time}"
    return f"{state} {share} {scope}, mostly {largest.label}: {time}"


def _alt(accounts: Ledger, run_steps: Steps, unit: Scale) -> str:
    parts = sorted(accounts.parts, key=lambda part: -accounts.total_frac(part.key))
    shares = ", ".join(
        f"{part.label} {unit(float(accounts.sum_ns(part.key).mean()))} ({percent(accounts.total_frac(part.key), 1)})"
        for part in parts
        if accounts.total_frac(part.key) >= MIN_SEGMENT_FRAC
    )
    subject = "The whole recording" if run_steps.detected_by == WHOLE_RUN else "The mean recorded step"
    return f"{subject} as a waterfall chart, {unit(float(accounts.step_ns.mean()))} in total: {shares}"


def _table(accounts: Ledger, unit: Scale) -> TableBlock:
    rows = [
        _cells(accounts, unit, part.label, part.key, key=part.key)
        for part in accounts.parts
        if accounts.sum_ns(part.key).any()
    ]
    keys = tuple(part.key for part in accounts.parts)
    rows.append(_cells(accounts, unit, "total", *keys, kind="total"))
    return TableBlock(
        header=("", unit.unit, "share", "range"),
        rows=tuple(rows),
        caption="The parts sum to the total (apart from rounding).",
    )


def _cells(accounts: Ledger, unit: Scale, label: str, *keys: str, key: str | None = None, kind: str = "plain") -> Row:
    mean = unit.number(float(accounts.sum_ns(*keys).mean()))
    return Row((label, mean, percent(accounts.total_frac(*keys), 1), unit.range(*accounts.range_ns(*keys))), key, kind)
