"""Charts of lines and of bars, with a result as title."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, single_plot
from gpulab.views.charts.drawing.style import Style
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import number

_COLOURS = ("matmul", "loader", "communication", "copies", "launch", "reductions")
_MARKS = ("o-", "s--", "^:", "D-.", "v-", "x--")
MAX_TICKS = 9


def line_plot(
    answer: str,
    series: Mapping[str, Mapping[float, float]],
    *,
    x: str,
    y: str,
    source: str | Run,
    log_x: bool = False,
    log_y: bool = False,
) -> Chart:
    """Return a plot of lines by name, each a mapping of x to y.

    `answer`: its result, which is the title. `source`: of the numbers, as text or as the run that they come from.
    """
    header = (x, *series)
    places = sorted({place for line in series.values() for place in line})
    rows = tuple(
        Row((number(place), *(number(line[place]) if place in line else "" for line in series.values())))
        for place in places
    )

    def draw(axes: Axes) -> None:
        for index, (name, line) in enumerate(series.items()):
            shade = colour(_COLOURS[index % len(_COLOURS)])
            # Where two lines coincide, the marks of the second one are open, and larger.
            mark: Style = {"markersize": 5, "clip_on": False}  # a mark at the edge is drawn in full
            mark |= {} if index % 2 == 0 else {"markersize": 8, "markerfacecolor": "none"}
            axes.plot(list(line), list(line.values()), _MARKS[index % len(_MARKS)], color=shade, label=name, **mark)
        if log_x:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_locator(FixedLocator(places[:: -(-len(places) // MAX_TICKS)]))
            axes.xaxis.set_minor_locator(NullLocator())
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=min(0.0, *(min(line.values()) for line in series.values())))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if len(series) > 1:
            axes.legend(loc="best")

    alt = f"{y} by {x}: " + "; ".join(
        f"{name}: " + ", ".join(f"{number(place)}: {number(value)}" for place, value in line.items())
        for name, line in series.items()
    )
    return single_plot(answer, draw, source=source, alt=alt, table=TableBlock(header=header, rows=rows))


def bar_plot(answer: str, bars: Mapping[str, float], *, x: str, source: str | Run, log_x: bool = False) -> Chart:
    """Return a plot of horizontal bars with their values; arguments as for `line_plot`."""

    def draw(axes: Axes) -> None:
        names = list(bars)
        axes.barh(range(len(names)), list(bars.values()), color=colour(_COLOURS[0]), height=0.6)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        if log_x:
            axes.set_xscale("log")
        axes.margins(x=0.14)
        for index, value in enumerate(bars.values()):
            axes.annotate(number(value), (value, index), (4, 0), textcoords="offset points", va="center")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.set_xlabel(x)

    alt = f"{x}: " + ", ".join(f"{name}: {number(value)}" for name, value in bars.items())
    table = TableBlock(header=("", x), rows=tuple(Row((name, number(value))) for name, value in bars.items()))
    height_in = 1.5 + 0.36 * len(bars)
    return single_plot(answer, draw, source=source, alt=alt, table=table, height_in=height_in)
