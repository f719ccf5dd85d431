"""A page without anywidget: the Jupyter server is installed in another environment than the kernel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.front_end.kernel import Kernel, Reply
from tests.views.live.test_live import BUSY, sends

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def impatient(live: Kernel) -> Kernel:
    """A kernel that gives the page 0.3 s to answer; it forgets afterwards whether the page did."""
    live.run("from gpulab.magics import panels; panels.SILENCE_S = 0.3; panels.forget_page()")
    yield live
    live.run("panels.SILENCE_S = 8.0; panels.forget_page()")


def shown(reply: Reply) -> list[dict[str, Any]]:
    """What the panel's place showed, one after the other, without the report."""
    return [message["content"]["data"] for message in reply.of("display_data", "update_display_data")][:-1]


def test_a_page_that_never_answers_is_shown_html_that_goes_on(impatient):
    bundles = shown(impatient.run(BUSY, notebook=True))
    assert WIDGET in bundles[0]
    assert "text/html" in bundles[0], "for a page that knows no widgets at all"
    assert all(WIDGET not in bundle for bundle in bundles[1:])
    assert len({bundle["text/html"] for bundle in bundles[1:]}) >= 2


def test_a_page_that_answers_keeps_the_widget(impatient, front):
    reply = impatient.run(BUSY, notebook=True, during=sends(front, "hello"))
    assert impatient.value("panels.WidgetPanel._answered") is True
    assert len(shown(reply)) == 1


def test_an_answer_that_comes_late_brings_the_widget_back(impatient, front):
    impatient.run(BUSY, notebook=True)
    reply = impatient.run(BUSY, notebook=True, during=sends(front, "hello"))
    assert WIDGET in shown(reply)[-1]


def test_unloading_forgets_the_page(impatient):
    impatient.run(BUSY, notebook=True)
    assert impatient.value("panels.WidgetPanel._answered") is False
    impatient.run("%reload_ext gpulab")
    assert impatient.value("panels.WidgetPanel._answered") is None
