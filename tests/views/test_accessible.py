"""axe-core, in Chromium, over what we show: light and dark, wide and narrow, folded and unfolded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpulab.views.report.report import report
from tests.support.front_end.pages import on_pages
from tests.support.runs.example_report import example_report

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[dev]' has axe-core")

SERIOUS = ("serious", "critical")
every_report = on_pages(("made", "v100_resnet50_workers0", "a100_ddp_8ranks_rank"))
UNFOLD = "() => document.querySelectorAll('details').forEach(each => each.open = true)"


@pytest.fixture
def page(any_page: Any) -> Any:
    return any_page


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> Any:
    if request.param == "made":
        return example_report()
    import gpulab

    find: Callable[[str], Path] = request.getfixturevalue("recorded")
    return report(gpulab.load(find(f"{request.param}.json.gz")))


def faults(page: Any) -> list[str]:
    """What axe finds serious, with the elements it means."""
    found = axe.Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in SERIOUS]


def test_axe_sees_what_is_wrong_with_a_page_that_is_wrong(page):
    page.set_content(
        '<html><body><main><img src="data:,"><p style="color:#999;background:#aaa">pale</p></main></body></html>'
    )
    assert {fault.partition(":")[0] for fault in faults(page)} >= {"image-alt", "color-contrast", "html-has-lang"}


@every_report
def test_a_report_has_no_serious_fault(page, told):
    page.set_content(told.html_page())
    assert faults(page) == []
    page.evaluate(UNFOLD)
    assert faults(page) == []


@pytest.mark.full
@on_pages(("made",))
def test_a_page_with_the_timeline_has_no_serious_fault(page, told, tmp_path):
    path = told.save(tmp_path / "report.html")
    page.goto(path.as_uri())
    page.wait_for_selector(".gpulab-tl[data-painted]")
    page.evaluate(UNFOLD)
    assert faults(page) == []


@every_report
def test_a_report_never_scrolls_sideways(page, told):
    page.set_content(told.html_page())
    page.evaluate(UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@every_report
def test_everything_that_unfolds_is_reached_and_opened_by_keyboard(page, told):
    page.set_content(told.html_page())
    count = page.locator("summary:visible").count()
    reached = []
    for _ in range(count):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName"))
    assert reached == ["SUMMARY"] * count
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
