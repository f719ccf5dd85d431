"""Where a step goes: of one run a cascade that sums to the step, of several what changed from one to the next."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, Part
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, chart
from gpulab.views.charts.drawing.steps_and_ledger import (
    LOOPLESS,
    accounted,
    bar_rows,
    beside,
    how_judged,
    in_unit,
    without_events,
)
from gpulab.views.charts.drawing.style import PAPER, SOFT, Dress
from gpulab.views.charts.steps.waterfall import waterfall
from gpulab.views.report.ledger_table import DEVICE, SLIVER_FRAC
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import Scale, percent, scale

WHAT = "Where a step goes"
IDLE_HATCH = "////"
IDLE_WORTH_FRAC = 0.05  # less idle time than this is not the answer


def ledger(run: Run, *more: Run) -> Chart:
    """Where each step's time goes, part by part; of several runs, what each part gave or took from one to the next.

    From gpulab.analysis.steps.ledger: means over the interior steps, which sum to the step exactly. It cannot show
    what the steps without the profiler would have gone to: recording makes calls of operators longer.
    """
    if more:
        return waterfall((run, *more))
    found, accounts = accounted(run)
    if accounts is None:
        return without_events(run, WHAT)
    unit = scale(float(accounts.step_ns.mean()), figures=4)
    rows = _rows(accounts)

    def draw(axes: Axes) -> None:
        _draw(axes, accounts, rows, unit)
        axes.set_xlabel(f"{unit.unit} ({how_judged(run, found)})")

    return chart(
        _answer(accounts, found, unit),
        draw,
        source=run,
        alt=_alt(accounts, found, unit),
        table=_table(accounts, unit),
        height_in=1.75 + 0.27 * (len(rows) + 1),
    )


def _rows(accounts: Ledger) -> list[tuple[str, str, bool, float]]:
    """Key, label, busy, ns of each bar: the parts, and what is too small for a bar of its own together."""
    rows = []
    for busy in (True, False):
        mine = [part for part in accounts.parts if part.busy is busy]
        rows += [_row(accounts, part) for part in mine if accounts.frac(part.key) >= SLIVER_FRAC]
        slivers = tuple(part.key for part in mine if accounts.frac(part.key) < SLIVER_FRAC)
        if slivers and accounts.of(*slivers).any():
            label = "other work" if busy else "other idle time"
            rows.append(("rest", label, busy, float(accounts.of(*slivers).mean())))
    return rows


def _row(accounts: Ledger, part: Part) -> tuple[str, str, bool, float]:
    return part.key, part.label, part.busy, float(accounts.of(part.key).mean())


def _draw(axes: Axes, accounts: Ledger, rows: list[tuple[str, str, bool, float]], unit: Scale) -> None:
    step_ns, at = float(accounts.step_ns.mean()), 0.0
    last = len(rows)
    for place, (key, _, busy, ns) in enumerate(rows):
        fill = NEUTRAL if key == "rest" else colour(key)
        dress: Dress = {"color": fill} if busy else {"facecolor": fill, "edgecolor": PAPER, "hatch": IDLE_HATCH}
        axes.barh(place, ns, left=at, height=0.72, linewidth=0, **dress)
        axes.barh(last, ns, left=at, height=0.72, linewidth=0, **dress)
        at += ns
        axes.plot([at, at], [place + 0.36, place + 0.64], color=SOFT, linewidth=0.8)
        beside(axes, at, place, f"{unit(ns)}  {percent(ns / step_ns, 1)}")
    beside(axes, at, last, unit(step_ns), fontweight="bold")
    bar_rows(axes, [*(row[1] for row in rows), "together"], step_ns * 1.2)
    in_unit(axes.xaxis, unit)
    busy_label, idle_label = DEVICE[accounts.device]
    keys = [Patch(facecolor=NEUTRAL), Patch(facecolor=NEUTRAL, edgecolor=PAPER, hatch=IDLE_HATCH, linewidth=0)]
    names = [
        f"{name} {percent(frac, 1)}"
        for name, frac in ((busy_label, accounts.busy_frac), (idle_label, accounts.idle_frac))
    ]
    axes.legend(keys, names, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1, handleheight=1.0)


def _answer(accounts: Ledger, found: Steps, unit: Scale) -> str:
    whole = "of what was recorded" if found.found_by == LOOPLESS else "of each step"
    step_ns = float(accounts.step_ns.mean())
    idle = accounts.idle_frac >= IDLE_WORTH_FRAC
    most = max((part for part in accounts.parts if part.busy is not idle), key=lambda part: accounts.frac(part.key))
    states = {("gpu", True): "GPU idle", ("gpu", False): "GPU busy", ("cpu", True): "Not computing"}
    state = states.get((accounts.device, idle), "Computing")
    share = percent(accounts.idle_frac if idle else accounts.busy_frac)
    told = f"{unit(float(accounts.of(most.key).mean()))} of {unit(step_ns)}"
    if accounts.device == "cpu" and not idle:
        return f"{state} {share} {whole}: {told}"
    return f"{state} {share} {whole}, most of it {most.label}: {told}"


def _alt(accounts: Ledger, found: Steps, unit: Scale) -> str:
    parts = sorted(accounts.parts, key=lambda part: -accounts.frac(part.key))
    told = ", ".join(
        f"{part.label} {unit(float(accounts.of(part.key).mean()))} ({percent(accounts.frac(part.key), 1)})"
        for part in parts
        if accounts.frac(part.key) >= SLIVER_FRAC
    )
    whole = "All that was recorded" if found.found_by == LOOPLESS else "A mean recorded step"
    return f"{whole} as a cascade of bars, {unit(float(accounts.step_ns.mean()))} in all: {told}"


def _table(accounts: Ledger, unit: Scale) -> Table:
    rows = [
        _cells(accounts, unit, part.label, part.key, key=part.key)
        for part in accounts.parts
        if accounts.of(part.key).any()
    ]
    keys = tuple(part.key for part in accounts.parts)
    rows.append(_cells(accounts, unit, "together", *keys, kind="total"))
    return Table(
        header=("", unit.unit, "share", "range"), rows=tuple(rows), caption="The parts sum to the whole exactly."
    )


def _cells(accounts: Ledger, unit: Scale, label: str, *keys: str, key: str | None = None, kind: str = "plain") -> Row:
    mean = unit.number(float(accounts.of(*keys).mean()))
    return Row((label, mean, percent(accounts.frac(*keys), 1), unit.range(*accounts.range_ns(*keys))), key, kind)
