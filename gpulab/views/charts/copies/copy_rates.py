"""Chart of copies: size and rate of each, by direction and by kind of host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator
from numpy.typing import NDArray

from gpulab.analysis.copies.copy_table import copy_direction, host_memory
from gpulab.analysis.copies.host_to_device import LARGE_BYTES, copy_rate
from gpulab.analysis.events.device_work import device_work, missing_work_reason
from gpulab.analysis.machine.link import best_link_bytes_per_s
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT, TEXT_COLOUR
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import UNKNOWN, count, metric, percent, scale, size

MAX_MARKS, CELLS = 1600, 36  # more copies are drawn as a grid with at most CELLS cells per side
_FIX = "Copy inside the recorded steps: batch.to(device) is a copy, and so are .cpu() and .item()"
_DIRECTIONS = {
    "HtoD": ("host to GPU", "o", "loader"),
    "DtoH": ("GPU to host", "s", "matmul"),
    "DtoD": ("within the GPU", "^", "copies"),
    "PtoP": ("between GPUs", "D", "communication"),
}


@dataclass(frozen=True, eq=False)
class _Group:
    """Copies of one direction and one kind of host memory."""

    direction: str | None
    memory: str | None
    rows: Rows  # all copies
    timed: Rows  # copies with size and time

    @property
    def label(self) -> str:
        name = (
            _DIRECTIONS[self.direction][0] if self.direction in _DIRECTIONS else self.direction or "unknown direction"
        )
        return f"{name}, {self.memory}" if self.memory else name

    @property
    def route(self) -> str:
        """Direction and memory as a phrase: "from pageable host memory to the GPU"."""
        memory = f"{self.memory} " if self.memory else ""
        routes = {"HtoD": f"from {memory}host memory to the GPU", "DtoH": f"from the GPU to {memory}host memory"}
        return routes.get(self.direction or "", self.label if self.direction else "in an unknown direction")

    @property
    def style(self) -> dict[str, Any]:
        """Style of the marks: filled for pinned memory, hollow for pageable or unknown memory."""
        _, marker, key = _DIRECTIONS.get(self.direction or "", ("", "X", ""))
        shade = colour(key) if key else NEUTRAL
        hollow = self.memory in ("pageable", None) and self.direction in ("HtoD", "DtoH")
        return {"marker": marker, "facecolor": "none" if hollow else shade, "edgecolor": shade, "linewidth": 1.1}

    @property
    def rates(self) -> NDArray[np.float64]:
        """Bytes per second of each copy with size and time."""
        bytes_per_s: NDArray[np.float64] = self.timed["bytes"] * 1e9 / self.timed["dur_ns"]
        return bytes_per_s


def copy_rates(run: Run) -> Chart:
    """Show size and rate of every recorded copy; memset is excluded.

    The line is the rate of a large pinned copy on this link, if GPU and link are known. Short copies cannot reach it,
    because starting a copy takes microseconds. The time is that of the copy alone: how long the call blocked the host,
    and whether kernels overlapped, is not shown. Many copies share marks, which are larger for more copies.
    """
    groups = _groups(run)
    if not groups:
        if missing_work_reason(run) is not None or not len(device_work(run)):
            why = missing_work_reason(run) or "no GPU work was recorded"
            fix = "Record on a machine with a GPU, or on a virtual one: %%gpuprofile --virtual h100"
            return missing_data_chart(run, "Copies", why, fix)
        return missing_data_chart(run, "Copies", "nothing was copied while events were recorded", _FIX)
    if not any(len(group.timed) for group in groups):
        return missing_data_chart(run, "Rates of copies", "the copies in this trace have no size")
    best = best_link_bytes_per_s(run)
    return single_plot(
        _answer(groups, best),
        lambda axes: _draw(axes, groups, best),
        source=run,
        alt=_alt(groups, best),
        table=_table(groups),
    )


def _groups(run: Run) -> list[_Group]:
    """Group copies by direction and host memory, most bytes first."""
    copies = run.event_rows.select(device_work(run).of_kind(EventKind.MEMCPY).event_rows)
    names = copies.text("name")
    kind_of_name = [(copy_direction(name), host_memory(name)) for name in (*names.vocabulary, None)]
    kinds = list(dict.fromkeys(kind_of_name))
    kind_index = np.array([kinds.index(kind) for kind in kind_of_name])[names.codes]
    groups = []
    for index, (way, memory) in enumerate(kinds):
        if len(rows := copies.select(kind_index == index)):
            timed = rows.select((rows["bytes"] > 0) & (rows["dur_ns"] > 0))
            groups.append(_Group(way, memory, rows, timed))
    return sorted(groups, key=lambda group: -int(group.timed["bytes"].sum()))


def _leading(groups: Sequence[_Group]) -> _Group:
    """Return the largest group of copies to the GPU; if there is none, the largest group."""
    timed = [group for group in groups if len(group.timed)]
    return next((group for group in timed if group.direction == "HtoD"), timed[0])


def _answer(groups: Sequence[_Group], best: float | None) -> str:
    first = _leading(groups)
    large = first.timed.select(first.timed["bytes"] >= LARGE_BYTES)
    copies = large if len(large) else first.timed
    reached = copy_rate(copies) or 0.0
    subject = f"{'Large copies' if len(large) else 'Copies'} {first.route}"
    over_link = best is not None and first.direction in ("HtoD", "DtoH")
    share = f", {percent(reached / best)} of the practical link rate" if over_link and best else ""
    number = count(len(copies), "copy", "copies")
    return f"{subject} reach {metric(reached, 'B/s')}{share} ({number}, {size(float(copies['bytes'].sum()))})"


def _draw(axes: Axes, groups: Sequence[_Group], best: float | None) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    limit = MAX_MARKS // len(groups)
    for group in groups:
        if not len(group.timed):
            continue
        x, y, count = _marks(group.timed["bytes"].astype(np.float64), group.rates, limit)
        area = 22 + 14 * np.log2(count)
        label = f"{group.label} ({len(group.timed):,})"
        axes.scatter(x, y, s=area, label=label, alpha=0.85, rasterized=len(x) > 100, **group.style)
    if best is not None:
        axes.axhline(best, color=TEXT_COLOUR, linewidth=1, linestyle="--")
        label = f"large pinned copy on this link: {metric(best, 'B/s')}"
        axes.annotate(
            label, (0, best), (4, 3), xycoords=axes.get_yaxis_transform(), textcoords="offset points", fontsize=SMALL_PT
        )
    axes.margins(x=0.06, y=0.12)
    axes.set_xlim(left=max(0.6, axes.get_xlim()[0]))
    axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1.0,), numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value).replace(".0 ", " ")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: metric(value, "B/s")))
    axes.minorticks_off()
    axes.set_xlabel("size of the copy (log scale)")
    axes.set_ylabel("rate (log scale)")
    axes.legend(loc="best", borderaxespad=0.2, handletextpad=0.3, framealpha=0.8, frameon=True, edgecolor=BACKGROUND)


def _marks(
    sizes: NDArray[np.float64], rates: NDArray[np.float64], limit: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], Ints]:
    """Return x, y and number of copies of each mark: one per copy, or one per non-empty cell of a grid."""
    if len(sizes) <= limit:
        return sizes, rates, np.ones(len(sizes), np.int64)
    x, y = np.log2(sizes), np.log2(rates)
    cells = min(CELLS, int(np.sqrt(limit)))
    cell = _cell(x, cells) * cells + _cell(y, cells)
    count = np.bincount(cell, minlength=cells * cells)
    occupied = np.flatnonzero(count)
    means = [
        np.bincount(cell, weights=values, minlength=cells * cells)[occupied] / count[occupied] for values in (x, y)
    ]
    return 2.0 ** means[0], 2.0 ** means[1], np.asarray(count[occupied], np.int64)


def _cell(values: NDArray[np.float64], cells: int) -> Ints:
    low, high = float(values.min()), float(values.max())
    return np.minimum(((values - low) / max(high - low, 1e-9) * cells).astype(np.int64), cells - 1)


def _alt(groups: Sequence[_Group], best: float | None) -> str:
    texts = []
    for group in groups:
        reached = copy_rate(group.timed)
        texts.append(f"{group.label}: {count(len(group.rows), 'copy', 'copies')}")
        if reached is not None:
            texts[-1] += f", {size(float(group.timed['bytes'].sum()))} at {metric(reached, 'B/s')} overall"
        if unknown := len(group.rows) - len(group.timed):
            texts[-1] += f", {unknown:,} of them without a size or a time"
    link = (
        f"A large pinned copy on this link reaches {metric(best, 'B/s')}"
        if best is not None
        else "The rate of the link is unknown"
    )
    return f"Size against rate of each copy, both on logarithmic axes. {'; '.join(texts)}. {link}."


def _table(groups: Sequence[_Group]) -> TableBlock:
    unit = scale(max(float(group.rows["dur_ns"].sum()) for group in groups))
    rows = []
    for group in groups:
        reached, has_times = copy_rate(group.timed), len(group.timed) > 0
        rows.append(Row((
            group.label, f"{len(group.rows):,}", size(float(group.timed["bytes"].sum())) if has_times else UNKNOWN,
            size(float(np.median(group.timed["bytes"]))) if has_times else UNKNOWN,
            unit.number(group.rows["dur_ns"].sum()), UNKNOWN if reached is None else metric(reached, 'B/s'),
            metric(float(group.rates.max()), "B/s") if has_times else UNKNOWN,
        )))  # fmt: skip
    header = ("copies", "count", "bytes", "median size", f"time, {unit.unit}", "overall rate", "highest rate")
    return TableBlock(
        header=header, rows=tuple(rows), caption="Bytes and rates are of the copies with a known size and time."
    )
