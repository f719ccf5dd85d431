"""The ranks of a job side by side: how long each waits at collectives, and for whom."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gpulab.analysis.ranks.stragglers import LEAST_STEPS, Arrivals, Side, arrivals, excess, sides
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.shades import pale
from gpulab.views.charts.drawing.style import INK, SMALL_PT
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import Scale, count, percent, scale

MOST_ROWS, MOST_SOURCES = 40, 3
_WORKS, _WAITS = "matmul", "communication"
_ONE = 'Record every rank and load them together: ranks = gpulab.load("folder/"), gpulab.charts.rank_skew(ranks)'
_MORE = "Record the same steps on every rank: torch.profiler.schedule(wait=5, warmup=2, active=6)"


def rank_skew(*ranks: Run | Sequence[Run]) -> Chart:
    """Each rank's step: how long it works towards its collectives, and how long it waits there for the last to come.

    From collectives matched across ranks: who comes last has the shortest, and what the others' last longer, they
    waited; only waits that hold up the GPU count. All ranks must have recorded the same steps. Why the last one is
    late, its own report tells; sending and receiving between neighbours is not compared.
    """
    runs = [run for each in ranks for run in ([each] if isinstance(each, Run) else each)]
    if len(runs) < 2:
        return nothing_to_draw(
            runs, "Skew of ranks", "one rank was given, and who is late shows only beside others", _ONE
        )
    arrived = arrivals(runs)
    if arrived is None:
        return nothing_to_draw(runs[:MOST_SOURCES], "Skew of ranks", _why(runs), _MORE)
    steps_ns = [_step_ns(each) for each in arrived.sides]
    return chart(
        _answer(arrived, steps_ns),
        lambda axes: _draw(axes, arrived, steps_ns),
        source=_source(arrived),
        alt=_words(arrived, steps_ns),
        table=_table(arrived, steps_ns),
    )


def _why(runs: Sequence[Run]) -> str:
    found = len(sides(runs))
    if found < len(runs):
        return f"{len(runs) - found} of {len(runs)} runs have no collectives in their interior steps"
    return f"the collectives of the ranks cannot be matched in {LEAST_STEPS} steps that all of them recorded"


def _step_ns(side: Side) -> int:
    return side.steps.traced_ns or 0


def _name(arrived: Arrivals, place: int) -> str:
    rank = arrived.sides[place].run.rank
    return str(place if rank is None else rank)


def _source(arrived: Arrivals) -> str:
    whence = dict.fromkeys(str(each.run.source) for each in arrived.sides)
    shown = "; ".join(list(whence)[:MOST_SOURCES])
    more = len(whence) - MOST_SOURCES
    return f"{shown}{f'; {more} more' if more > 0 else ''}; {len(arrived.sides)} ranks"


def _answer(arrived: Arrivals, steps_ns: Sequence[int]) -> str:
    unit = scale(max(steps_ns))
    late = _name(arrived, arrived.late)
    others = "the other waits" if len(arrived.sides) == 2 else f"the other {len(arrived.sides) - 1} wait"
    often = f"all {arrived.steps}" if arrived.late_frac == 1 else f"{percent(arrived.late_frac)} of {arrived.steps}"
    wait = f"{unit.number(arrived.wait_ns)} of {unit(steps_ns[arrived.late])}"
    return f"Rank {late} comes last in {often} steps: {others} {wait}"


def _draw(axes: Axes, arrived: Arrivals, steps_ns: Sequence[int]) -> None:
    unit = scale(max(steps_ns))
    places = range(len(steps_ns))
    waits = [wait / unit.unit_ns for wait in arrived.waits_ns]
    works = [max(0.0, step / unit.unit_ns - wait) for step, wait in zip(steps_ns, waits, strict=True)]
    width = 0.72 if len(works) <= 64 else 1.0
    bars = axes.bar(places, works, width, color=pale(colour(_WORKS), 0.5), label="the rest of the step")
    axes.bar(places, waits, width, bottom=works, color=colour(_WAITS), label="waits for the last")
    bars[arrived.late].set(facecolor=colour(_WORKS), hatch="///", edgecolor="#FFFFFF")
    top = max(work + wait for work, wait in zip(works, waits, strict=True))
    axes.annotate(
        f"rank {_name(arrived, arrived.late)}: last",
        (arrived.late, works[arrived.late] + waits[arrived.late]),
        (0, 3),
        textcoords="offset points",
        ha="center" if 0 < arrived.late < len(works) - 1 else "left" if arrived.late == 0 else "right",
        fontsize=SMALL_PT,
        color=INK,
        fontweight="bold",
    )
    if len(works) <= 40:
        axes.set_xticks(
            places, [_name(arrived, place) for place in places], fontsize=8.5 if len(works) <= 20 else SMALL_PT
        )
    else:
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_xlim(-0.6, len(works) - 0.4)
    axes.set_ylim(0, top * 1.12)
    axes.grid(False, axis="x")
    axes.set_xlabel("rank")
    axes.set_ylabel(f"{unit.unit} of a step")
    comes_last = Patch(facecolor=colour(_WORKS), hatch="///", edgecolor="#FFFFFF", label="comes last")
    handles = [*axes.get_legend_handles_labels()[0], comes_last]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.1, handlelength=1.3)


def _longer(arrived: Arrivals, unit: Scale) -> str:
    """The part of the ledger that takes most longer on the late rank; "" where none does."""
    key, more_ns = max(excess(arrived).items(), key=lambda each: each[1])
    label = arrived.sides[arrived.late].ledger.label(key)
    return f" There {unit(more_ns)} more go to {label} than on the others." if more_ns > 0 else ""


def _words(arrived: Arrivals, steps_ns: Sequence[int]) -> str:
    unit = scale(max(steps_ns))
    others = [wait for place, wait in enumerate(arrived.waits_ns) if place != arrived.late]
    late, late_ns = _name(arrived, arrived.late), arrived.waits_ns[arrived.late]
    return (
        f"A bar for each of {len(steps_ns)} ranks: its step of {unit.range(min(steps_ns), max(steps_ns))} {unit.unit}, "
        f"and the wait in it. Rank {late} waits {unit(late_ns)}, the others "
        f"{unit.range(min(others), max(others))} {unit.unit}; {count(arrived.matched, 'collective')} matched."
        f"{_longer(arrived, unit)}"
    )


def _table(arrived: Arrivals, steps_ns: Sequence[int]) -> Table:
    unit = scale(max(steps_ns))
    rows = [
        Row((
            _name(arrived, place), unit.number(step), unit.number(wait), percent(wait / max(1, step), 1),
            "comes last" if place == arrived.late else "",
        ))
        for place, (step, wait) in enumerate(zip(steps_ns, arrived.waits_ns, strict=True))
    ]  # fmt: skip
    shown = rows[:MOST_ROWS]
    if arrived.late >= MOST_ROWS:
        shown[-1] = rows[arrived.late]
    left_out = len(rows) - len(shown)
    caption = "Medians over the steps compared." + (f" {left_out:,} more ranks left out." if left_out else "")
    header = ("rank", f"step, {unit.unit}", f"waits, {unit.unit}", "share", "")
    return Table(header=header, rows=tuple(shown), caption=caption)
