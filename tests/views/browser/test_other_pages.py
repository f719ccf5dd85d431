"""The static views in the pages of other front ends, imitated: VS Code's variables and classes, Colab's frame, none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpulab.views.live.html_panel import panel_html
from gpulab.views.live.panel_content import PanelContentBuilder
from tests.support.front_end.legibility import LEAST_CONTRAST, contrasts
from tests.support.front_end.live_panel import gpu, live_state
from tests.support.runs.example_report import example_report

pytestmark = pytest.mark.browser

VS_CODE = (
    "<html style='--vscode-foreground:{ink};--vscode-editor-background:{paper}'><body class='{name}'><style>"
    "body{{color:var(--vscode-foreground);background:var(--vscode-editor-background);"
    "font:13px/1.4 sans-serif}}</style>{output}</body></html>"
)
# Colab shows each output in a frame of its own; its dark theme is an attribute, its text colour a rule for the body.
COLAB = (
    "<html theme='{name}'><style>body{{color:{ink};background:{paper};font:14px sans-serif}}</style>"
    "<body>{output}</body></html>"
)
PAGES = {
    "vscode-light": VS_CODE.format(name="vscode-light", ink="#3b3b3b", paper="#ffffff", output="{output}"),
    "vscode-dark": VS_CODE.format(name="vscode-dark", ink="#cccccc", paper="#1f1f1f", output="{output}"),
    "vscode-contrast": VS_CODE.format(name="vscode-high-contrast", ink="#ffffff", paper="#000000", output="{output}"),
    "colab-light": COLAB.format(name="light", ink="#1f1f1f", paper="#ffffff", output="{output}"),
    "colab-dark": COLAB.format(name="dark", ink="#e3e3e3", paper="#383838", output="{output}"),
    "plain": "<html><body>{output}</body></html>",
}
TEXTS = "div, span, td, th, summary, pre, code, b"
SPARKS, LEAST_GRAPHIC = "▁▂▃▄▅▆▇█", 3.0  # a sparkline of characters is a picture


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest, chromium: Any) -> Iterator[Any]:
    """A page of this front end that shows a report and, below it, the live panel."""
    panel = PanelContentBuilder("before").build(live_state(gpus=(gpu(),)))
    opened = chromium.new_page(viewport={"width": 900, "height": 800})
    opened.set_content(PAGES[request.param].replace("{output}", example_report()._repr_html_() + panel_html(panel)))
    opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    yield opened
    opened.close()


def test_every_text_is_legible(page):
    found = contrasts(page, TEXTS)
    assert len(found) > 60
    least = {text: LEAST_GRAPHIC if text in SPARKS else LEAST_CONTRAST for text in found}
    assert {text: ratio for text, ratio in found.items() if ratio < least[text]} == {}


def test_nothing_is_wider_than_the_page(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
