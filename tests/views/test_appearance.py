"""Every view in light, dark and high-contrast themes, by keyboard, at 200 % zoom and without motion."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpulab.views.sheet.palette import colour
from gpulab.views.timeline.page import timeline_page
from gpulab.views.timeline.scene.scene import build_scene
from tests.support.front_end.every_view import every_view, page_of, show_panel
from tests.support.runs.example_report import example_report
from tests.support.tiers import first_tier

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[dev]' has axe-core")

SCHEMES = ("light", "dark")
LONG = ("job report", "history", "rules", "what-if list")  # axe takes seconds for them
ZOOMED = 640  # CSS pixels of a window of 1280 at 200 %
MATMUL, LOADER = colour("matmul"), colour("loader")
UNFOLD = "() => document.querySelectorAll('details').forEach(each => each.open = true)"
SCROLLED = """() => [...document.querySelectorAll('main *')].filter(each => each.scrollWidth > each.clientWidth + 1
  && ['auto', 'scroll'].includes(getComputedStyle(each).overflowX)).map(each => each.firstElementChild?.tagName)"""
MOVING = "() => document.getAnimations().filter(each => each.playState === 'running').length"


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return every_view(tmp_path_factory.mktemp("history"))


@pytest.fixture(scope="module")
def window(chromium: Any) -> Iterator[Any]:
    opened = chromium.new_page(viewport={"width": 1100, "height": 800}, reduced_motion="reduce")
    yield opened
    opened.close()


@pytest.fixture
def page(window: Any) -> Any:
    """An empty page without emulated settings."""
    window.goto("about:blank")  # a page of a test before has a policy of its own
    window.emulate_media(color_scheme="light", forced_colors="none", reduced_motion="reduce")
    window.set_viewport_size({"width": 1100, "height": 800})
    return window


def show(page: Any, views: dict[str, str]) -> None:
    page.set_content(page_of(views))
    show_panel(page)


def violations(page: Any) -> list[str]:
    results = axe.Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in results]


@pytest.mark.parametrize("scheme", first_tier(SCHEMES, ["dark"]))
@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.full)], ids=["short", "long"])
def test_axe_reports_nothing_in_any_view(page, views, scheme, long):
    page.emulate_media(color_scheme=scheme)
    show(page, {name: html for name, html in views.items() if (name in LONG) == long})
    page.evaluate(UNFOLD)
    assert violations(page) == []


@pytest.mark.full  # axe takes seconds for the timeline, whose report is tested above
@pytest.mark.parametrize("scheme", SCHEMES)
def test_axe_reports_nothing_in_the_timeline(page, timeline, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(timeline)
    page.wait_for_selector(".gpulab-tl[data-painted]")
    page.get_by_role("button", name="keyboard shortcuts").click()
    page.get_by_role("button", name="lane as table").click()
    assert violations(page) == []


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("timeline") / "timeline.html"
    path.write_text(timeline_page(build_scene(example_report().diagnosis)), encoding="utf-8")
    return path.as_uri()


def test_at_200_percent_only_tables_scroll_sideways(page, views):
    page.set_viewport_size({"width": ZOOMED, "height": 400})
    show(page, views)
    page.evaluate(UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth") <= ZOOMED
    assert set(page.evaluate(SCROLLED)) <= {"TABLE"}


# High contrast: the theme replaces every colour of text and background.


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bars_and_keys_keep_their_colours_in_high_contrast(page, views, scheme):
    page.emulate_media(color_scheme=scheme, forced_colors="active")
    show(page, {name: views[name] for name in ("comparison", "what-if", "lesson", "live panel")})
    for part, shade in (("long operators", MATMUL), ("waiting for data", LOADER)):
        segment = page.locator(f'#comparison [title^="{part}"]').first
        assert has_colour(segment, shade), "a segment of a bar"
    assert has_colour(page.locator("#comparison th span").first, MATMUL), "the key of a table"
    for badge in page.locator("#lesson span", has_text="HOLDS").all():
        assert badge.evaluate("each => getComputedStyle(each).borderTopColor === getComputedStyle(each).color")
    fills = page.locator("#live-widget .gpulab-fill, #live-widget .gpulab-share").evaluate_all(
        "all => all.map(each => getComputedStyle(each).backgroundColor + getComputedStyle(each).backgroundImage)"
    )
    empty = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert fills
    assert all(not fill.startswith(f"{empty}none") for fill in fills)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_timeline_in_high_contrast_has_the_colours_of_causes_on_the_page_of_the_theme(page, timeline, scheme):
    page.emulate_media(color_scheme=scheme, forced_colors="active")
    page.goto(timeline)
    page.wait_for_selector(".gpulab-tl[data-painted]")
    assert has_colour(page.locator(".gpulab-tl-canvas"), LOADER)
    dark, light = (has_colour(page.locator(".gpulab-tl-canvas"), shade) for shade in ("#000000", "#FFFFFF"))
    assert dark, "the page or its text"
    assert light, "the text or its page"


def pixels(locator: Any) -> Any:
    """What an element looks like, as rows of RGB pixels."""
    return np.asarray(Image.open(io.BytesIO(locator.screenshot())).convert("RGB")).astype(int)


def has_colour(locator: Any, shade: str) -> bool:
    """Whether more than a few pixels of the element have this colour."""
    wanted = np.array([int(shade[at : at + 2], 16) for at in (1, 3, 5)])
    return int((np.abs(pixels(locator) - wanted).max(axis=-1) <= 3).sum()) >= 20


# Keyboard.


def test_whatever_opens_is_reached_and_opened_by_keyboard_and_shows_the_focus(page, views):
    show(page, {name: views[name] for name in ("report", "lesson", "ledger chart")})
    foldable = page.locator("summary:visible").count()
    assert foldable >= 5
    for _ in range(foldable):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
    page.keyboard.press("Enter")
    assert not page.evaluate("document.activeElement.parentElement.open")


def test_the_tools_of_the_timeline_come_before_its_lanes_and_each_shows_the_focus(page, timeline):
    page.goto(timeline)
    page.wait_for_selector(".gpulab-tl[data-painted]")
    order = []
    while "gpulab-tl-stage" not in order:
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        order.append(page.evaluate("document.activeElement.className.split(' ')[0]"))
        assert len(order) < 30
    assert order[0] == "gpulab-tl-input"
    assert order.count("gpulab-tl-button") == 7


def press_and_paint(page, key):
    """Press a key and wait until the timeline has painted what follows from it."""
    painted = page.locator(".gpulab-tl").get_attribute("data-painted")
    page.keyboard.press(key)
    page.wait_for_selector(f'.gpulab-tl[data-painted]:not([data-painted="{painted}"])')


def test_the_timeline_pans_and_zooms_by_keyboard(page, timeline):
    page.goto(timeline)
    page.wait_for_selector(".gpulab-tl[data-painted]")
    page.locator(".gpulab-tl-stage").focus()
    spans = [page.locator(".gpulab-tl-corner").text_content()]
    for key in ("+", "-", "Home"):
        press_and_paint(page, key)
        spans.append(page.locator(".gpulab-tl-corner").text_content())
    first, closer, back, whole = spans
    assert closer != first == back != whole
    press_and_paint(page, "+")
    before = pixels(page.locator(".gpulab-tl-canvas"))
    press_and_paint(page, "ArrowRight")
    assert (pixels(page.locator(".gpulab-tl-canvas")) != before).any()


# Motion.


def test_the_live_panel_moves_only_if_the_reader_has_not_asked_for_less_motion(page, views):
    for motion, moves in (("reduce", False), ("no-preference", True)):
        page.emulate_media(reduced_motion=motion)
        show(page, {"lesson": views["lesson"]})
        assert bool(page.evaluate(MOVING)) == moves
