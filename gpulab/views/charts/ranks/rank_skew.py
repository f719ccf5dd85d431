"""Chart of ranks: how long each waits at collectives, and which rank is the straggler."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gpulab.analysis.ranks.arrivals import MIN_STRAGGLER_STEPS
from gpulab.analysis.ranks.stragglers import (
    Rank,
    Straggler,
    find_straggler,
    ranks_with_collectives,
    straggler_excess_ns,
)
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.shades import pale_shade
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT, TEXT_COLOUR
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, count, percent, scale

MAX_ROWS, MAX_SOURCES = 40, 3
_WORKS, _WAITS = "matmul", "communication"
_ONE = 'Record every rank and load them together: ranks = gpulab.load("folder/"), gpulab.charts.rank_skew(ranks)'
_MORE = "Record the same steps on every rank: torch.profiler.schedule(wait=5, warmup=2, active=6)"


def rank_skew(*ranks: Run | Sequence[Run]) -> Chart:
    """Show for each rank the time that it works before its collectives, and the time that it waits there.

    From collectives matched across ranks: the last rank to arrive has the shortest collective, and the others wait for
    the difference. Only waits that block the GPU count. All ranks must have recorded the same steps. The report of the
    straggler explains why it is late. Point-to-point communication is not compared.
    """
    runs = [run for argument in ranks for run in ([argument] if isinstance(argument, Run) else argument)]
    if len(runs) < 2:
        return missing_data_chart(
            runs, "Rank skew", "only one rank was passed, and a straggler is visible only among several ranks", _ONE
        )
    arrival_times = find_straggler(runs)
    if arrival_times is None:
        return missing_data_chart(runs[:MAX_SOURCES], "Rank skew", _why(runs), _MORE)
    steps_ns = [_step_ns(each) for each in arrival_times.ranks]
    return single_plot(
        _answer(arrival_times, steps_ns),
        lambda axes: _draw(axes, arrival_times, steps_ns),
        source=_source(arrival_times),
        alt=_alt(arrival_times, steps_ns),
        table=_table(arrival_times, steps_ns),
    )


def _why(runs: Sequence[Run]) -> str:
    usable = len(ranks_with_collectives(runs))
    if usable < len(runs):
        return f"{len(runs) - usable} of {len(runs)} runs have no collectives in their complete steps"
    return f"the collectives of the ranks cannot be matched in {MIN_STRAGGLER_STEPS} steps that all of them recorded"


def _step_ns(side: Rank) -> int:
    return side.steps.traced_ns or 0


def _name(arrival_times: Straggler, index: int) -> str:
    rank = arrival_times.ranks[index].run.rank
    return str(index if rank is None else rank)


def _source(arrival_times: Straggler) -> str:
    texts = dict.fromkeys(str(side.run.source) for side in arrival_times.ranks)
    first = "; ".join(list(texts)[:MAX_SOURCES])
    more = len(texts) - MAX_SOURCES
    return f"{first}{f'; {more} more' if more > 0 else ''}; {len(arrival_times.ranks)} ranks"


def _answer(arrival_times: Straggler, steps_ns: Sequence[int]) -> str:
    unit = scale(max(steps_ns))
    late = _name(arrival_times, arrival_times.index)
    others = "the other waits" if len(arrival_times.ranks) == 2 else f"the other {len(arrival_times.ranks) - 1} wait"
    frequency = (
        f"all {arrival_times.steps}"
        if arrival_times.last_frac == 1
        else f"{percent(arrival_times.last_frac)} of {arrival_times.steps}"
    )
    wait = f"{unit.number(arrival_times.others_wait_ns)} of {unit(steps_ns[arrival_times.index])}"
    return f"Rank {late} arrives last in {frequency} steps: {others} {wait} per step"


def _draw(axes: Axes, arrival_times: Straggler, steps_ns: Sequence[int]) -> None:
    unit = scale(max(steps_ns))
    indices = range(len(steps_ns))
    waits = [wait / unit.unit_ns for wait in arrival_times.waits_ns]
    works = [max(0.0, step / unit.unit_ns - wait) for step, wait in zip(steps_ns, waits, strict=True)]
    width = 0.72 if len(works) <= 64 else 1.0
    bars = axes.bar(indices, works, width, color=pale_shade(colour(_WORKS), 0.5), label="rest of the step")
    axes.bar(indices, waits, width, bottom=works, color=colour(_WAITS), label="waiting for the last rank")
    bars[arrival_times.index].set(facecolor=colour(_WORKS), hatch="///", edgecolor=BACKGROUND)
    top = max(work + wait for work, wait in zip(works, waits, strict=True))
    axes.annotate(
        f"rank {_name(arrival_times, arrival_times.index)}: last",
        (arrival_times.index, works[arrival_times.index] + waits[arrival_times.index]),
        (0, 3),
        textcoords="offset points",
        ha="center" if 0 < arrival_times.index < len(works) - 1 else "left" if arrival_times.index == 0 else "right",
        fontsize=SMALL_PT,
        color=TEXT_COLOUR,
        fontweight="bold",
    )
    if len(works) <= 40:
        axes.set_xticks(
            indices, [_name(arrival_times, index) for index in indices], fontsize=8.5 if len(works) <= 20 else SMALL_PT
        )
    else:
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_xlim(-0.6, len(works) - 0.4)
    axes.set_ylim(0, top * 1.12)
    axes.grid(False, axis="x")
    axes.set_xlabel("rank")
    axes.set_ylabel(f"{unit.unit} per step")
    last_patch = Patch(facecolor=colour(_WORKS), hatch="///", edgecolor=BACKGROUND, label="arrives last")
    handles = [*axes.get_legend_handles_labels()[0], last_patch]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.1, handlelength=1.3)


def _longer(arrival_times: Straggler, unit: Scale) -> str:
    """Name the ledger part that is longer by most on the straggler; "" if none is longer."""
    key, more_ns = max(straggler_excess_ns(arrival_times).items(), key=lambda pair: pair[1])
    label = arrival_times.ranks[arrival_times.index].ledger.label(key)
    return f" It spends {unit(more_ns)} more on {label} than the other ranks." if more_ns > 0 else ""


def _alt(arrival_times: Straggler, steps_ns: Sequence[int]) -> str:
    unit = scale(max(steps_ns))
    others = [wait for index, wait in enumerate(arrival_times.waits_ns) if index != arrival_times.index]
    late, late_ns = _name(arrival_times, arrival_times.index), arrival_times.waits_ns[arrival_times.index]
    return (
        f"A bar for each of {len(steps_ns)} ranks: its step of {unit.range(min(steps_ns), max(steps_ns))} {unit.unit}, "
        f"and the wait in it. Rank {late} waits {unit(late_ns)}, the others "
        f"{unit.range(min(others), max(others))} {unit.unit}; {count(arrival_times.collectives, 'collective')} matched."
        f"{_longer(arrival_times, unit)}"
    )


def _table(arrival_times: Straggler, steps_ns: Sequence[int]) -> TableBlock:
    unit = scale(max(steps_ns))
    rows = [
        Row((
            _name(arrival_times, index), unit.number(step), unit.number(wait), percent(wait / max(1, step), 1),
            "arrives last" if index == arrival_times.index else "",
        ))
        for index, (step, wait) in enumerate(zip(steps_ns, arrival_times.waits_ns, strict=True))
    ]  # fmt: skip
    listed = rows[:MAX_ROWS]
    if arrival_times.index >= MAX_ROWS:
        listed[-1] = rows[arrival_times.index]
    omitted = len(rows) - len(listed)
    caption = "Medians over the steps compared." + (f" {omitted:,} more ranks are not listed." if omitted else "")
    header = ("rank", f"step, {unit.unit}", f"wait, {unit.unit}", "share", "")
    return TableBlock(header=header, rows=tuple(listed), caption=caption)
