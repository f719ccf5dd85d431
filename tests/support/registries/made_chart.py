"""A chart that a test adds to the catalogue."""

from __future__ import annotations

from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, chart
from gpulab.views.sheet.sheet import Row, Table


def made_chart(run: Run) -> Chart:
    """A line."""
    table = Table(header=("x", "y"), rows=(Row(("1", "2")),))
    return chart("A chart", lambda axes: axes.plot([1, 2]), source=run, alt="A line", table=table)
