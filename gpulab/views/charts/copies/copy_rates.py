"""Each copy by its size and the rate it reached, by direction and by the kind of host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator
from numpy.typing import NDArray

from gpulab.analysis.copies.host_to_device import LARGE_BYTES, rate
from gpulab.analysis.copies.table import direction, host_memory
from gpulab.analysis.events.device_work import device_work, missing_work
from gpulab.analysis.machine.link import practical_bytes_per_s
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.style import INK, PAPER, SMALL_PT
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import UNKNOWN, count, metric, percent, scale, size

MOST_MARKS, CELLS = 1600, 36  # more copies than that share the marks of a grid with so many cells a side
_FIX = "Copy inside the recorded steps: batch.to(device) is a copy, and so are .cpu() and .item()"
_WAYS = {
    "HtoD": ("host to GPU", "o", "loader"),
    "DtoH": ("GPU to host", "s", "matmul"),
    "DtoD": ("within the GPU", "^", "copies"),
    "PtoP": ("between GPUs", "D", "communication"),
}


@dataclass(frozen=True, eq=False)
class _Group:
    """Copies of one direction and one kind of host memory."""

    way: str | None
    memory: str | None
    rows: Rows  # all of them
    timed: Rows  # those that tell size and time

    @property
    def label(self) -> str:
        way = _WAYS[self.way][0] if self.way in _WAYS else (self.way or "direction not told")
        return f"{way}, {self.memory}" if self.memory else way

    @property
    def route(self) -> str:
        """In a sentence: from pageable host memory to the GPU."""
        memory = f"{self.memory} " if self.memory else ""
        routes = {"HtoD": f"from {memory}host memory to the GPU", "DtoH": f"from the GPU to {memory}host memory"}
        return routes.get(self.way or "", self.label if self.way else "whose direction is not told")

    @property
    def style(self) -> dict[str, Any]:
        """Pinned memory is drawn filled, pageable and what is not told hollow: not by colour alone."""
        _, marker, key = _WAYS.get(self.way or "", ("", "X", ""))
        shade = colour(key) if key else NEUTRAL
        hollow = self.memory in ("pageable", None) and self.way in ("HtoD", "DtoH")
        return {"marker": marker, "facecolor": PAPER if hollow else shade, "edgecolor": shade, "linewidth": 1.1}

    @property
    def rates(self) -> NDArray[np.float64]:
        """Bytes a second of each that tells."""
        each: NDArray[np.float64] = self.timed["bytes"] * 1e9 / self.timed["dur_ns"]
        return each


def copy_rates(run: Run) -> Chart:
    """Every recorded copy: its bytes, and its bytes over its own time; fills are no copies and are left out.

    The line is what a large pinned copy gets on this link, where GPU and link were told; short copies cannot reach it,
    as starting one takes microseconds. The time is that of the copy alone: how long a call held the host, and whether
    a kernel ran beside it, this does not tell. Many copies share marks, larger for more of them.
    """
    groups = _groups(run)
    if not groups:
        if missing_work(run) is not None or not len(device_work(run)):
            why = missing_work(run) or "no work of a GPU was recorded, and so no copy"
            fix = "Record on a machine with a GPU, or on a virtual one: %%gpuprofile --virtual h100"
            return nothing_to_draw(run, "Copies", why, fix)
        return nothing_to_draw(run, "Copies", "nothing was copied while events were recorded", _FIX)
    if not any(len(each.timed) for each in groups):
        return nothing_to_draw(run, "Rates of copies", "the copies of this trace do not tell their size")
    best = practical_bytes_per_s(run)
    return chart(
        _answer(groups, best),
        lambda axes: _draw(axes, groups, best),
        source=run,
        alt=_words(groups, best),
        table=_table(groups),
    )


def _groups(run: Run) -> list[_Group]:
    """Most bytes first."""
    copies = run.event_rows.where(device_work(run).of_kind(Kind.MEMCPY).event)
    names = copies.words("name")
    told = [(direction(word), host_memory(word)) for word in (*names.vocabulary, None)]
    kinds = list(dict.fromkeys(told))
    of_word = np.array([kinds.index(each) for each in told])
    mine = of_word[names.codes]
    found = []
    for number, (way, memory) in enumerate(kinds):
        if len(rows := copies.where(mine == number)):
            timed = rows.where((rows["bytes"] > 0) & (rows["dur_ns"] > 0))
            found.append(_Group(way, memory, rows, timed))
    return sorted(found, key=lambda each: -int(each.timed["bytes"].sum()))


def _leading(groups: Sequence[_Group]) -> _Group:
    """Over the link, most bytes to the GPU; without such, most bytes."""
    timed = [each for each in groups if len(each.timed)]
    return next((each for each in timed if each.way == "HtoD"), timed[0])


def _answer(groups: Sequence[_Group], best: float | None) -> str:
    first = _leading(groups)
    large = first.timed.where(first.timed["bytes"] >= LARGE_BYTES)
    shown = large if len(large) else first.timed
    reached = rate(shown) or 0.0
    which = f"{'Large copies' if len(large) else 'Copies'} {first.route}"
    over_link = best is not None and first.way in ("HtoD", "DtoH")
    beside = f", {percent(reached / best)} of what this link can give" if over_link and best else ""
    many = count(len(shown), "copy", "copies")
    return f"{which} reach {metric(reached, 'B/s')}{beside} ({many}, {size(float(shown['bytes'].sum()))})"


def _draw(axes: Axes, groups: Sequence[_Group], best: float | None) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    most = MOST_MARKS // len(groups)
    for each in groups:
        if not len(each.timed):
            continue
        x, y, count = _marks(each.timed["bytes"].astype(np.float64), each.rates, most)
        area = 22 + 14 * np.log2(count)
        label = f"{each.label} ({len(each.timed):,})"
        axes.scatter(x, y, s=area, label=label, alpha=0.85, rasterized=len(x) > 500, **each.style)
    if best is not None:
        axes.axhline(best, color=INK, linewidth=1, linestyle="--")
        words = f"a large pinned copy on this link: {metric(best, 'B/s')}"
        axes.annotate(
            words, (0, best), (4, 3), xycoords=axes.get_yaxis_transform(), textcoords="offset points", fontsize=SMALL_PT
        )
    axes.margins(x=0.06, y=0.12)
    axes.set_xlim(left=max(0.6, axes.get_xlim()[0]))
    axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0,), numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value).replace(".0 ", " ")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: metric(value, "B/s")))
    axes.minorticks_off()
    axes.set_xlabel("size of the copy")
    axes.set_ylabel("rate")
    axes.legend(loc="best", borderaxespad=0.2, handletextpad=0.3, framealpha=0.8, frameon=True, edgecolor=PAPER)


def _marks(
    sizes: NDArray[np.float64], rates: NDArray[np.float64], most: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], Ints]:
    """Where marks go, and for how many copies each: one for each copy, or for each cell of a grid that holds some."""
    if len(sizes) <= most:
        return sizes, rates, np.ones(len(sizes), np.int64)
    x, y = np.log2(sizes), np.log2(rates)
    cells = min(CELLS, int(np.sqrt(most)))
    place = _cell(x, cells) * cells + _cell(y, cells)
    count = np.bincount(place, minlength=cells * cells)
    held = np.flatnonzero(count)
    means = [np.bincount(place, weights=values, minlength=cells * cells)[held] / count[held] for values in (x, y)]
    return 2.0 ** means[0], 2.0 ** means[1], np.asarray(count[held], np.int64)


def _cell(values: NDArray[np.float64], cells: int) -> Ints:
    low, high = float(values.min()), float(values.max())
    return np.minimum(((values - low) / max(high - low, 1e-9) * cells).astype(np.int64), cells - 1)


def _words(groups: Sequence[_Group], best: float | None) -> str:
    told = []
    for each in groups:
        reached = rate(each.timed)
        told.append(f"{each.label}: {count(len(each.rows), 'copy', 'copies')}")
        if reached is not None:
            told[-1] += f", {size(float(each.timed['bytes'].sum()))} at {metric(reached, 'B/s')} in all"
        if untold := len(each.rows) - len(each.timed):
            told[-1] += f", {untold:,} of them without a size or a time"
    link = (
        f"A large pinned copy on this link gets {metric(best, 'B/s')}"
        if best is not None
        else "What the link can give is not told"
    )
    return f"Size against rate of each copy, both on logarithmic axes. {'; '.join(told)}. {link}."


def _table(groups: Sequence[_Group]) -> Table:
    unit = scale(max(float(each.rows["dur_ns"].sum()) for each in groups))
    rows = []
    for each in groups:
        reached, told = rate(each.timed), len(each.timed) > 0
        rows.append(Row((
            each.label, f"{len(each.rows):,}", size(float(each.timed["bytes"].sum())) if told else UNKNOWN,
            size(float(np.median(each.timed["bytes"]))) if told else UNKNOWN,
            unit.number(each.rows["dur_ns"].sum()), UNKNOWN if reached is None else metric(reached, 'B/s'),
            metric(float(each.rates.max()), "B/s") if told else UNKNOWN,
        )))  # fmt: skip
    header = ("copies", "count", "bytes", "median size", f"time, {unit.unit}", "rate in all", "fastest")
    return Table(header=header, rows=tuple(rows), caption="Bytes and rates of the copies that tell size and time.")
