"""Plots of lines and bars: what they show is also in their table and their description."""

from __future__ import annotations

import pytest

from gpulab.views.charts.drawing.plots import bar_plot, line_plot

SERIES = {"measured": {1: 10.0, 2: 20.0, 4: 40.0}, "by formula": {1: 10.0, 4: 39.0}}


def test_every_number_is_in_the_table_and_in_the_description():
    chart = line_plot("Twice the size takes twice the time", SERIES, x="size", y="ms", source="measured here")
    assert chart.table.header == ("size", "measured", "by formula")
    assert [row.cells for row in chart.table.rows] == [("1", "10", "10"), ("2", "20", ""), ("4", "40", "39")]
    for text in ("Twice the size takes twice the time", "by formula: 1: 10, 4: 39", "Source: measured here"):
        assert text in chart.alt


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("log_y", [False, True])
def test_lines_have_their_points_and_differ_in_more_than_colour(log_x, log_y):
    chart = line_plot("a", SERIES, x="size", y="ms", source="s", log_x=log_x, log_y=log_y)
    (axes,) = chart.axes
    lines = axes.get_lines()
    assert [dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in lines] == list(SERIES.values())
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 2
    assert not any(line.get_clip_on() for line in lines)  # marks at the edges are whole
    assert lines[0].get_markerfacecolor() != lines[1].get_markerfacecolor()  # one on top of the other: both are seen
    assert (axes.get_xscale(), axes.get_yscale()) == ("log" if log_x else "linear", "log" if log_y else "linear")
    chart.png()  # draws


def test_a_linear_axis_begins_at_zero_or_below():
    assert line_plot("a", SERIES, x="x", y="y", source="s").axes[0].get_ylim()[0] == 0
    assert line_plot("a", {"a": {1: -5.0, 2: 3.0}}, x="x", y="y", source="s").axes[0].get_ylim()[0] == -5


def test_bars_are_labelled_from_the_top():
    chart = bar_plot("Reading is slow", {"read": 30.0, "decode": 2.0}, x="ms", source="s")
    (axes,) = chart.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["read", "decode"]
    assert axes.yaxis_inverted()
    assert [text.get_text() for text in axes.texts] == ["30", "2"]
    assert [row.cells for row in chart.table.rows] == [("read", "30"), ("decode", "2")]
    chart.png()
