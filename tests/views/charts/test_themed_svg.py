"""Charts in notebooks: SVG that is light or dark like its page, small, the same everywhere, and readable in both."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from gpulab.views import charts
from gpulab.views.charts.catalogue import CHARTS
from gpulab.views.charts.drawing.chart import MAX_SVG_BYTES, Chart, single_plot
from gpulab.views.sheet.sheet import TableBlock
from tests.views.charts.test_charts import made

SVG = "{http://www.w3.org/2000/svg}"
by_chart = pytest.mark.parametrize("make", CHARTS, ids=lambda make: make.__name__)


def source(chart: Chart) -> str:
    return re.search(r'src="data:image/([^;]*);base64,([^"]*)"', chart._repr_html_()).group(1)


@by_chart
@pytest.mark.parametrize("kind", ["gpu", pytest.param("hostile", marks=pytest.mark.full)])
def test_a_chart_in_a_notebook_is_one_small_svg_that_runs_and_loads_nothing(make, kind):
    chart = make(made(kind))
    svg = chart.svg()
    root = ElementTree.fromstring(svg)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        "svg", "style", "g", "path", "text", "use", "defs", "clipPath", "rect", "pattern", "image",
    }  # fmt: skip
    links = [value for each in root.iter() for name, value in each.attrib.items() if name.endswith("href")]
    targets = {each.get("id") for each in root.iter()}
    assert all(link.startswith("data:image/png;base64,") or link.removeprefix("#") in targets for link in links)
    assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= targets
    assert source(chart) == "svg+xml"


def test_the_same_chart_is_the_same_svg_and_smaller_than_a_png():
    chart, again = charts.ledger(made("gpu")), charts.ledger(made("gpu"))
    assert chart.svg() == again.svg()
    assert 3 * len(chart.svg().encode()) < len(chart.png())


def test_a_chart_of_very_many_marks_is_a_png():
    many = np.random.default_rng(0).random((2, 6000))
    table = TableBlock(header=("", ""), rows=())
    chart = single_plot("Many", lambda axes: axes.plot(*many, "o"), source="made", alt="Many marks", table=table)
    assert len(chart.svg().encode()) > MAX_SVG_BYTES
    assert source(chart) == "png"
