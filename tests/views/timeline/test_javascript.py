"""Drawing and interaction of the timeline in Chromium, with a scene that is encoded by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpulab.views.timeline.script import bundle_script, stylesheet
from tests.support.front_end.timeline_tiles import COPIES, KERNELS, OPS, QUARTER_NS, SHORT_NS, SPAN_NS, Box, Scene

pytestmark = pytest.mark.browser

WIDTH = 1024 + 168  # one pixel of the lanes is half a bin of the whole run
HOST = "http://timeline.test"
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title>
<style>/* style */ body { margin: 0 }</style>
<div id="el"></div><div style="height: 3000px"></div><script type="module">
/* script */
const get = async (url) => { const answer = await fetch(url); return answer.status === 204 ? null : answer.json(); };
Object.assign(window, { tiles: [], selections: [], brushes: [], windows: [], inFlight: 0, most: 0,
  gate: Promise.resolve() });
const source = {
  header: await get("/header"),
  offline: new URLSearchParams(location.search).has("offline"),
  async tile(level, index) {
    tiles.push(`${level}/${index}`);
    most = Math.max(most, ++window.inFlight);
    if (level) await gate;
    const answer = await fetch(`/tile?level=${level}&index=${index}`);
    window.inFlight--;
    return answer.status === 204 ? null : answer.arrayBuffer();
  },
  search: (text) => get("/search?text=" + encodeURIComponent(text)),
  brush: (start, end) => (brushes.push([start, end]), get(`/brush?start=${start}&end=${end}`)),
  card: () => Promise.resolve(null),
  selected: (selection) => selections.push(selection),
  window: (start, end) => windows.push([start, end]),
};
window.timeline = mount(document.getElementById("el"), source);
</script></html>"""


READ = """([x, y, height]) =>
  [...document.querySelector(".gpulab-tl-canvas").getContext("2d").getImageData(x, y, 1, height).data]"""


class TimelinePage:
    """A timeline in a page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def settle(self) -> None:
        self.page.evaluate("async () => { await timeline.settled(); await timeline.settled(); }")

    def go(self, start: float, end: float) -> None:
        self.page.evaluate("([start, end]) => timeline.go(start, end)", [start, end])
        self.settle()

    def top(self, group: str, row: int = 0) -> int:
        """Return the top of a row of a group on the canvas."""
        label = self.page.locator(".gpulab-tl-label", has_text=group).first
        return int(label.evaluate("node => parseFloat(node.style.top)")) + 24 + 16 * row

    def pixel(self, x: float, y: float) -> str:
        """Return the colour of a pixel of the lanes; "" if it is not opaque."""
        return self.column(x, y, 1)[0]

    def column(self, x: float, top: float, height: int) -> list[str]:
        """Return the colours of a column of pixels, from top to bottom."""
        flat = self.page.evaluate(READ, [x, top, height])
        return [f"#{r:02X}{g:02X}{b:02X}" if a == 255 else "" for r, g, b, a in zip(*[iter(flat)] * 4, strict=True)]

    def alpha(self, x: float, y: float) -> int:
        """Return the alpha value of a pixel, 0 to 255."""
        return int(self.page.evaluate(READ, [x, y, 1])[3])

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Convert a point of the canvas into a point of the page."""
        box = self.page.locator(".gpulab-tl-stage").bounding_box()
        return box["x"] + x, box["y"] + y

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).all_inner_texts())

    def keys(self, *names: str) -> None:
        for name in names:
            self.page.keyboard.press(name)
            self.settle()

    def to_lanes(self) -> None:
        """Press Tab until the lanes have the focus."""
        for _ in range(30):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.className") == "gpulab-tl-stage":
                return
        raise AssertionError("Tab does not reach the lanes")

    def width_in_view(self) -> str:
        return self.text(".gpulab-tl-corner")


def answers(scene: Scene) -> Callable[[Any], None]:
    def search(text: str) -> dict[str, Any]:
        matches = [box for box in scene.boxes if text in box.name.lower()]
        hits = [
            {"start_ns": box.start, "dur_ns": box.dur, "row": box.row, "name": box.name, "id": box.id}
            for box in matches
        ]
        names = [{"name": each["name"], "count": 1, "total_ns": each["dur_ns"], "longest": each} for each in hits[:10]]
        return {"count": len(matches), "total_ns": sum(box.dur for box in matches), "hits": hits[:50], "names": names}

    def brush(start: int, end: int) -> dict[str, Any]:
        ledger = [{"key": "matrix", "label": "matrix kernels", "ns": end - start}]
        kernels = [{"name": "sgemm", "count": 1, "total_ns": 5_000_000, "mean_ns": 5_000_000.0}]
        side = {"name": "by hand", "ledger": ledger, "kernels": kernels, "note": ""}
        return {"start_ns": start, "end_ns": end, "sides": [side]}

    def answer(route: Any) -> None:
        url = urlsplit(route.request.url)
        query = {key: value[0] for key, value in parse_qs(url.query).items()}
        if url.path == "/":
            page = PAGE.replace("/* script */", bundle_script("timeline.js")).replace("/* style */", stylesheet())
            return route.fulfill(body=page, content_type="text/html")
        if url.path == "/header":
            return route.fulfill(body=json.dumps(scene.header()), content_type="application/json")
        if url.path == "/tile":
            blob = scene.tile(int(query["level"]), int(query["index"]))
            return route.fulfill(body=blob) if blob else route.fulfill(status=204)
        if url.path == "/search":
            return route.fulfill(body=json.dumps(search(query["text"])), content_type="application/json")
        ledger = brush(int(query["start"]), int(query["end"]))
        return route.fulfill(body=json.dumps(ledger), content_type="application/json")

    return answer


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    new_page = chromium.new_page()
    yield new_page
    new_page.close()


@pytest.fixture
def show(page: Any) -> Iterator[Callable[..., TimelinePage]]:
    errors: list[str] = []

    def note(error: Any) -> None:
        errors.append(str(error))

    def begin(scene: Scene | None = None, query: str = "", width: int = WIDTH, motion: str = "reduce") -> TimelinePage:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(reduced_motion=motion)
        page.route(HOST + "/**", answers(scene or Scene()))
        page.on("pageerror", note)
        page.mouse.move(0, 790)
        page.goto(HOST + "/" + query)
        page.wait_for_selector(".gpulab-tl[data-painted]")
        timeline = TimelinePage(page)
        timeline.settle()
        return timeline

    yield begin
    page.unroute(HOST + "/**")
    page.remove_listener("pageerror", note)
    assert errors == []


def test_a_box_has_its_colour_and_a_half_filled_bin_has_half_the_height(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    kernels, copies = timeline.top("kernels"), timeline.top("copies")
    assert timeline.pixel(490, kernels + 2) == "#0072B2"
    assert timeline.pixel(600, kernels + 2) == "", "idle time is transparent"
    bin_of_copies = timeline.column(600, copies, 17)
    filled = [y for y, colour in enumerate(bin_of_copies) if colour == "#009E73"]
    assert filled == list(range(9, 17)), "8 of 17 rows of pixels, at the bottom"
    assert timeline.pixel(800, copies + 15) == ""
    assert "showing bins" in timeline.text(".gpulab-tl-state")


def test_the_shortest_work_and_the_shortest_idle_time_are_visible(show: Callable[..., TimelinePage]) -> None:
    a_bin = SPAN_NS // 512
    almost = Box(COPIES, 100 * a_bin, a_bin - a_bin // 256, 3, "almost full")
    hardly = Box(COPIES, 200 * a_bin, a_bin // 128, 3, "hardly anything")
    timeline = show(Scene((almost, hardly)))
    copies = timeline.top("copies")
    assert timeline.column(200, copies, 17) == ["", *["#009E73"] * 16]
    assert timeline.column(400, copies, 17) == [*[""] * 16, "#009E73"]


def test_zooming_in_replaces_bins_by_boxes(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.go(2 * QUARTER_NS, 2 * QUARTER_NS + 16 * SHORT_NS)  # 64 px each
    copies = timeline.top("copies")
    assert set(timeline.column(96 - 64 + 20, copies, 14)) == {"#009E73"}
    assert set(timeline.column(64 + 32, copies + 1, 14)) == {""}, "idle time between two copies"
    assert "showing bins" not in timeline.text(".gpulab-tl-state")


def test_a_coarse_tile_is_stretched_until_the_fine_one_has_arrived(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.page.evaluate("() => { gate = new Promise((open) => { window.open_gate = open; }); }")
    timeline.page.evaluate("([a, b]) => timeline.go(a, b)", [2 * QUARTER_NS, 2 * QUARTER_NS + 16 * SHORT_NS])
    timeline.page.wait_for_timeout(100)
    copies = timeline.top("copies")
    assert timeline.pixel(96, copies + 15) == "#009E73", "half-filled bins of the coarse tile"
    assert timeline.pixel(32, copies + 3) == ""
    timeline.page.evaluate("open_gate()")
    timeline.settle()
    assert timeline.pixel(32, copies + 3) == "#009E73"
    assert timeline.pixel(96, copies + 15) == ""


def test_no_tile_is_requested_twice_and_at_most_three_at_a_time(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.page.evaluate("() => { gate = new Promise((open) => { window.open_gate = open; }); }")
    for part in (0, 1, 2, 3, 2, 1):
        timeline.page.evaluate("([a, b]) => timeline.go(a, b)", [part * QUARTER_NS, (part + 1) * QUARTER_NS])
        timeline.page.wait_for_timeout(60)
    assert timeline.page.evaluate("window.inFlight") == 3
    timeline.page.evaluate("open_gate()")
    timeline.settle()
    requests = timeline.page.evaluate("tiles")
    assert len(requests) == len(set(requests))
    assert timeline.page.evaluate("most") == 3
    last_quarter = [each for each in requests if each in ("2/3", "3/6", "3/7")]
    assert not last_quarter, "requests for windows that are no longer visible are dropped"


def test_a_box_can_be_selected_with_keys_alone(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.to_lanes()
    timeline.keys("Enter", "ArrowRight")
    assert [each["name"] for each in timeline.page.evaluate("selections")] == ["aten::relu"], (
        "the last box of a lane stays selected"
    )
    timeline.keys("ArrowLeft", "ArrowDown", "ArrowDown")
    timeline.page.wait_for_timeout(50)
    last = timeline.page.evaluate("selections.at(-1)")
    assert (last["row"], last["id"], last["name"]) == (OPS + 2, 13, "cudaLaunchKernel")
    assert "cudaLaunchKernel" in timeline.text(".gpulab-tl [role=status]")
    assert "cudaLaunchKernel" in timeline.text("[data-panel=selection]")
    assert "cudaLaunchKernel" in timeline.text(".gpulab-tl-card")
    timeline.keys("l")
    assert timeline.page.evaluate("selections.at(-1)") == {
        "row": KERNELS,
        "id": 20,
        "start_ns": QUARTER_NS,
        "dur_ns": QUARTER_NS,
        "name": "sgemm",
    }
    timeline.keys("Escape")
    assert timeline.page.evaluate("selections.at(-1)") is None
    assert timeline.page.locator("[data-panel=selection]").is_hidden()


def test_shortcuts_do_not_reach_the_notebook(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.page.evaluate("document.addEventListener('keydown', (event) => (window.leaked ??= []).push(event.key))")
    assert timeline.page.locator(".gpulab-tl").get_attribute("data-lm-suppress-shortcuts") == "true"
    timeline.to_lanes()
    timeline.page.evaluate("window.leaked = []")
    timeline.keys("ArrowDown", "b", "m", "Escape", "f", "?")
    assert timeline.page.evaluate("window.leaked") == []
    full_width = timeline.width_in_view()
    timeline.keys("+")
    assert timeline.width_in_view() != full_width
    timeline.keys("Home")
    assert timeline.width_in_view() == full_width


def test_a_search_lists_highlights_and_selects_matches(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.to_lanes()
    timeline.keys("/")
    timeline.page.keyboard.type("aten::")
    options = timeline.page.locator("[role=option]")
    options.first.wait_for()
    assert timeline.pixel(490, timeline.top("kernels") + 2) != "#0072B2", "boxes that do not match are dimmed"
    assert options.first.evaluate("node => node.tabIndex") == 0
    assert options.nth(1).evaluate("node => node.tabIndex") == -1
    timeline.keys("ArrowDown", "ArrowDown", "Enter")
    assert timeline.page.evaluate("selections.at(-1).name") == "aten::relu"
    assert timeline.page.evaluate("document.activeElement.className") == "gpulab-tl-stage"
    assert options.first.is_hidden()


def test_brushing_a_window_with_the_mouse_shows_its_ledger(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.page.keyboard.down("Shift")
    timeline.page.mouse.move(*timeline.point(256, 100))
    timeline.page.mouse.down()
    timeline.page.mouse.move(*timeline.point(400, 100))
    timeline.page.mouse.move(*timeline.point(512, 100))
    timeline.page.mouse.up()
    timeline.page.keyboard.up("Shift")
    timeline.page.wait_for_selector("[data-panel=brush] table")
    assert timeline.page.evaluate("brushes") == [[QUARTER_NS, 2 * QUARTER_NS]]
    text = timeline.text("[data-panel=brush]")
    assert "matrix kernels 268 ms (100 %)" in text
    assert "sgemm" in text


def test_a_group_folds_to_its_first_row(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    label = timeline.page.get_by_role("button", name="main thread")
    below = timeline.top("kernels")
    label.press("Enter")
    timeline.settle()
    assert label.get_attribute("aria-expanded") == "false"
    assert timeline.top("kernels") == below - 32
    assert timeline.pixel(100, timeline.top("main thread") + 2) == "#C99400", "the outermost operator is still drawn"
    timeline.page.evaluate("timeline.root.querySelector('.gpulab-tl-stage').focus()")
    timeline.keys("o")
    assert label.get_attribute("aria-expanded") == "true"
    assert timeline.top("kernels") == below


def test_names_from_a_trace_are_timeline_as_text_everywhere(show: Callable[..., TimelinePage]) -> None:
    name = "<img src=x onerror='window.broken=1'><script>window.broken=1</script>\"'"
    finding = {"rule": name, "claim": name, "confidence": "certain", "spans": [[0, QUARTER_NS]], "more": 0}
    scene = Scene((Box(KERNELS, 0, SPAN_NS, 2, name, 20, name),), name, (name,), findings=(finding,))
    timeline = show(scene)
    timeline.page.mouse.move(*timeline.point(300, timeline.top("kernels") + 4))
    timeline.page.mouse.down()
    timeline.page.mouse.up()
    timeline.page.locator(".gpulab-tl-chip").click()
    timeline.page.evaluate("timeline.root.querySelector('.gpulab-tl-stage').focus()")
    timeline.keys("t")
    timeline.page.evaluate("timeline.find('img')")
    timeline.page.wait_for_selector("[role=option]")
    selectors = ".gpulab-tl-title", ".gpulab-tl-chip", ".gpulab-tl-claim", ".gpulab-tl-notes", "[data-panel=selection]"
    for selector in (*selectors, "[data-panel=table]", "[role=option]"):
        assert name in timeline.text(selector).replace("\n", " "), selector
    assert timeline.page.locator(".gpulab-tl :is(img, script)").count() == 0
    assert timeline.page.evaluate("window.broken") is None


def test_a_wheel_scrolls_the_notebook_until_the_timeline_has_the_focus(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    full_width = timeline.width_in_view()
    timeline.page.mouse.move(*timeline.point(500, 60))
    timeline.page.mouse.wheel(0, -1)
    timeline.page.mouse.wheel(0, 60)
    timeline.page.wait_for_function("scrollY > 0")
    assert timeline.width_in_view() == full_width
    timeline.page.evaluate("scrollTo(0, 0)")
    timeline.page.mouse.click(*timeline.point(900, 60))
    timeline.page.mouse.wheel(0, -300)
    timeline.page.wait_for_function(
        "text => document.querySelector('.gpulab-tl-corner').textContent !== text", arg=full_width
    )
    assert timeline.page.evaluate("scrollY") == 0


def test_a_drag_pans_a_double_click_fits_and_two_fingers_zoom(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    last_window = """async () => {
      await timeline.settled();
      await new Promise((done) => setTimeout(done, 260));
      return windows.at(-1);
    }"""
    timeline.go(QUARTER_NS, 2 * QUARTER_NS)
    timeline.page.mouse.move(*timeline.point(600, 60))
    timeline.page.mouse.down()
    timeline.page.mouse.move(*timeline.point(300, 60))
    timeline.page.mouse.move(*timeline.point(344, 60))
    timeline.page.mouse.up()
    assert timeline.page.evaluate(last_window) == [QUARTER_NS * 1.25, QUARTER_NS * 2.25]
    timeline.page.mouse.dblclick(*timeline.point(300, timeline.top("kernels") + 4))
    assert timeline.page.evaluate(last_window) == pytest.approx([QUARTER_NS * 0.95, QUARTER_NS * 2.05], rel=1e-6)
    timeline.go(0, SPAN_NS)
    timeline.page.evaluate(
        """() => {
          const stage = document.querySelector(".gpulab-tl-stage"), { left, top } = stage.getBoundingClientRect();
          stage.setPointerCapture = () => {}; // fails for synthetic events
          const touch = (type, pointerId, x) => stage.dispatchEvent(new PointerEvent(type,
            { pointerId, clientX: left + x, clientY: top + 60, pointerType: "touch", bubbles: true }));
          touch("pointerdown", 1, 462), touch("pointerdown", 2, 562);
          touch("pointermove", 1, 412), touch("pointermove", 2, 612);
          touch("pointerup", 1, 412), touch("pointerup", 2, 612);
        }"""
    )
    assert timeline.page.evaluate(last_window) == pytest.approx([QUARTER_NS, 3 * QUARTER_NS], rel=1e-3)


def test_a_gap_in_the_readings_is_a_gap_in_the_curve(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    floor = timeline.top("power") + 36
    assert timeline.alpha(600, floor - 4) > timeline.alpha(740, floor - 4), "an area only where there are readings"
    timeline.page.mouse.move(*timeline.point(600, floor))
    timeline.settle()
    assert "200 W" in timeline.text(".gpulab-tl-value")
    timeline.page.mouse.move(*timeline.point(720, floor))
    timeline.settle()
    assert "not measured here" in timeline.text(".gpulab-tl-value")


def test_a_finding_starts_with_its_longest_evidence(show: Callable[..., TimelinePage]) -> None:
    spans = [[0, QUARTER_NS // 8], [2 * QUARTER_NS, 3 * QUARTER_NS]]
    finding = {"rule": "no_workers", "claim": "It waits.", "confidence": "certain", "spans": spans, "more": 3}
    timeline = show(Scene(findings=(finding,)))
    chip = timeline.page.locator(".gpulab-tl-chip")
    chip.click()
    timeline.settle()
    assert chip.get_attribute("aria-pressed") == "true"
    assert "Evidence 2 of 2: 268 ms" in timeline.text(".gpulab-tl-claim")
    assert "the 2 longest of 5" in timeline.text(".gpulab-tl-claim")
    chip.click()
    timeline.settle()
    assert "Evidence 1 of 2: 33.6 ms" in timeline.text(".gpulab-tl-claim")


@pytest.mark.parametrize(("motion", "at_once"), [("reduce", True), ("no-preference", False)])
def test_a_zoom_is_animated_unless_reduced_motion_is_preferred(
    show: Callable[..., TimelinePage], motion: str, at_once: bool
) -> None:
    timeline = show(motion=motion)
    after_a_frame = """async ([start, end]) => {
      timeline.go(start, end);
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      return document.querySelector('.gpulab-tl-corner').textContent;
    }"""
    early = timeline.page.evaluate(after_a_frame, [QUARTER_NS, QUARTER_NS + 1000 * SHORT_NS / 64])
    timeline.settle()
    assert (early == timeline.width_in_view()) is at_once


def test_a_file_without_finer_tiles_states_this_and_draws_coarse_ones(show: Callable[..., TimelinePage]) -> None:
    timeline = show(Scene(held=0), "?offline")
    timeline.go(2 * QUARTER_NS, 2 * QUARTER_NS + 16 * SHORT_NS)
    assert "no finer detail" in timeline.text(".gpulab-tl-state")
    assert timeline.pixel(96, timeline.top("copies") + 15) == "#009E73"


def test_a_lane_can_be_timeline_as_a_table(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.to_lanes()
    timeline.keys("t")
    rows = [row.split("\t") for row in timeline.text("[data-panel=table] tbody").splitlines()]
    assert [row[0] for row in rows] == ["aten::linear", "aten::relu"]
    assert rows[1][2] == "134 ms"
    timeline.page.get_by_role("combobox", name="lane").select_option(str(COPIES))
    assert "too short" in timeline.text("[data-panel=table]")


def test_an_empty_run_is_explained_by_its_notes(show: Callable[..., TimelinePage]) -> None:
    timeline = show(Scene(empty=True, notes=("Only sensors were recorded, and none answered.",)))
    assert "none answered" in timeline.text(".gpulab-tl-empty")


def test_in_a_narrow_cell_labels_are_above_their_lanes_and_nothing_overflows(show: Callable[..., TimelinePage]) -> None:
    timeline = show(width=480)
    assert timeline.page.evaluate("document.documentElement.scrollWidth") <= 480
    stage = timeline.page.locator(".gpulab-tl-stage").bounding_box()
    assert stage["x"] == 0
    timeline.page.mouse.move(470, stage["y"] + timeline.top("steps") + 24)
    assert "step 3" in timeline.text(".gpulab-tl-card")
    card = timeline.page.locator(".gpulab-tl-card").bounding_box()
    assert card["x"] >= 0
    assert card["x"] + card["width"] <= 480


def test_with_all_panels_open_there_is_no_serious_accessibility_violation(show: Callable[..., TimelinePage]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[dev]' has axe-core")
    finding = {
        "rule": "no_workers",
        "claim": "It waits.",
        "confidence": "certain",
        "spans": [[0, QUARTER_NS]],
        "more": 0,
    }
    timeline = show(Scene(findings=(finding,), notes=("Events were recorded for steps 3-14 only.",)))
    timeline.to_lanes()
    timeline.keys("n", "Enter", "b", "t", "?")
    timeline.page.evaluate("timeline.find('aten')")
    timeline.page.wait_for_selector("[role=option]")
    violations = axe.Axe().run(timeline.page).response["violations"]
    assert [each["id"] for each in violations if each["impact"] in ("serious", "critical")] == []


def test_destroy_removes_all_elements(show: Callable[..., TimelinePage]) -> None:
    timeline = show()
    timeline.page.evaluate("timeline.destroy()")
    timeline.page.set_viewport_size({"width": 700, "height": 700})
    timeline.page.wait_for_timeout(50)
    assert timeline.page.evaluate("document.getElementById('el').childElementCount") == 0
