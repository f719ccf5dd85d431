"""Charts as Chromium draws them: as matplotlib does, in the theme of the page, and readable in either theme."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from gpulab.views import charts
from gpulab.views.charts.catalogue import CHARTS
from gpulab.views.charts.drawing.style import BACKGROUND, DARK, chart_style
from tests.support.front_end.read_views import contrast
from tests.support.tiers import every_nth
from tests.views.charts.test_charts import made

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
# Each text with its colour and box; a second call hides them all.
TEXTS = """() => [...document.querySelectorAll('text')].filter(each => !each.closest('[opacity]')).map(each => {
  const {left, top, right, bottom} = each.getBoundingClientRect();
  return [each.textContent, getComputedStyle(each).fill, left, top, right, bottom];
})"""
HIDE = "() => document.querySelectorAll('text').forEach(each => each.style.visibility = 'hidden')"


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    opened = chromium.new_page(viewport={"width": 760, "height": 500})
    yield opened
    opened.close()


def screenshot(page: Any) -> Any:
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(float)


@pytest.mark.parametrize("make", [charts.ledger, charts.roofline], ids=lambda make: make.__name__)
def test_it_is_drawn_as_matplotlib_draws_it(page, make):
    file = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none"}), chart_style():
        Figure.savefig(make(made("gpu")), file, format="svg")
    page.emulate_media(color_scheme="light")
    drawn = []
    original = re.sub(r"(?<=\S)  (?=\S)", " \N{NO-BREAK SPACE}", file.getvalue().decode())
    for svg in (original, make(made("gpu")).svg()):
        data = base64.b64encode(svg.encode()).decode()
        page.set_content(f'<img style="width:740px" src="data:image/svg+xml;base64,{data}">')
        page.evaluate("() => document.images[0].decode()")
        drawn.append(screenshot(page))
    off = np.abs(drawn[0] - drawn[1]).max(axis=-1)
    assert (off > 64).mean() < 0.004, "letters may be a fraction of a pixel off"
    # Moved by as little as a line's width, it would differ more.
    moved = np.abs(drawn[0] - np.roll(drawn[1], 2, axis=1)).max(axis=-1)
    assert (moved > 64).mean() > 0.008


@pytest.mark.parametrize(("system", "theme"), [("light", "dark"), ("dark", "light"), ("dark", "dark")])
def test_it_has_the_theme_of_the_page_not_of_the_system(page, system, theme):
    page.emulate_media(color_scheme=system)
    page.set_content(f'<body style="color-scheme:{theme};margin:0">{CHARTS[0](made("gpu"))._repr_html_()}')
    page.evaluate("() => document.images[0].decode()")
    shade = BACKGROUND if theme == "light" else DARK[BACKGROUND]
    corner = screenshot(page)[40, 740]
    assert corner.tolist() == [int(shade[at : at + 2], 16) for at in (1, 3, 5)]


@pytest.mark.parametrize("make", every_nth(CHARTS, 4), ids=lambda make: make.__name__)
def test_its_text_is_readable_in_either_theme(page, make):
    svg = make(made("gpu")).svg()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_content(f'<body style="margin:0">{svg}')
        texts = page.evaluate(TEXTS)
        page.evaluate(HIDE)
        under = screenshot(page)
        assert len(texts) >= 3
        for text, fill, left, top, right, bottom in texts:
            box = under[int(max(top, 0)) : int(bottom) + 1, int(max(left, 0)) : int(right) + 1]
            behind = np.median(box.reshape(-1, 3), axis=0).astype(int)
            ink = [int(part) for part in re.findall(r"\d+", fill)[:3]]
            ratio = contrast(*("#" + "".join(f"{part:02x}" for part in rgb) for rgb in (ink, behind)))
            assert ratio >= 4.5, (scheme, text)
