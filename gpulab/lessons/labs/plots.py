"""Plots for notebook cells: lines and bars, with a result as title and the source of the numbers below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpulab.lessons.sources import SourceLike, source_label

if TYPE_CHECKING:
    from gpulab.views.charts.drawing.chart import Chart


def line_plot(
    answer: str,
    series: Mapping[str, Mapping[float, float]],
    *,
    x: str,
    y: str,
    source: SourceLike,
    log_x: bool = False,
    log_y: bool = False,
) -> Chart:
    """Return a plot of lines by name, each a mapping of x to y. `answer`: its result, which is the title."""
    from gpulab.views.charts.drawing.plots import line_chart

    return line_chart(answer, series, x=x, y=y, source=source_label(source), log_x=log_x, log_y=log_y)


def bar_plot(answer: str, bars: Mapping[str, float], *, x: str, source: SourceLike, log_x: bool = False) -> Chart:
    """Return a plot of horizontal bars with their values. `answer`: its result, which is the title."""
    from gpulab.views.charts.drawing.plots import bar_chart

    return bar_chart(answer, bars, x=x, source=source_label(source), log_x=log_x)
