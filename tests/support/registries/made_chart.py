"""A chart that a test adds to the catalogue."""

from __future__ import annotations

from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, single_plot
from gpulab.views.sheet.sheet import Row, TableBlock


def made_chart(run: Run) -> Chart:
    """A line."""
    table = TableBlock(header=("x", "y"), rows=(Row(("1", "2")),))
    return single_plot("A chart", lambda axes: axes.plot([1, 2]), source=run, alt="A line", table=table)
