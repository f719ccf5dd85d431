"""What the timeline draws and how it is used, in Chromium, with a scene packed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpulab.views.timeline.script import script, style
from tests.support.front_end.timeline_tiles import COPIES, KERNELS, OPS, QUARTER_NS, SHORT_NS, SPAN_NS, Box, Scene

pytestmark = pytest.mark.browser

WIDTH = 1024 + 168  # a pixel of the lanes is half a bin of the whole run
HOST = "http://timeline.test"
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title>
<style>/* style */ body { margin: 0 }</style>
<div id="el"></div><div style="height: 3000px"></div><script type="module">
/* script */
const said = async (url) => { const answer = await fetch(url); return answer.status === 204 ? null : answer.json(); };
Object.assign(window, { asked: [], chosen: [], brushed: [], windows: [], flying: 0, most: 0, gate: Promise.resolve() });
const source = {
  header: await said("/header"),
  offline: new URLSearchParams(location.search).has("offline"),
  async tile(level, index) {
    asked.push(`${level}/${index}`);
    most = Math.max(most, ++flying);
    if (level) await gate;
    const answer = await fetch(`/tile?level=${level}&index=${index}`);
    flying--;
    return answer.status === 204 ? null : answer.arrayBuffer();
  },
  search: (text) => said("/search?text=" + encodeURIComponent(text)),
  brush: (start, end) => (brushed.push([start, end]), said(`/brush?start=${start}&end=${end}`)),
  card: () => Promise.resolve(null),
  selected: (selection) => chosen.push(selection),
  window: (start, end) => windows.push([start, end]),
};
window.timeline = mount(document.getElementById("el"), source);
</script></html>"""


READ = """([x, y, height]) =>
  [...document.querySelector(".gpulab-tl-canvas").getContext("2d").getImageData(x, y, 1, height).data]"""


class Shown:
    """A timeline in a page."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def settle(self) -> None:
        self.page.evaluate("async () => { await timeline.settled(); await timeline.settled(); }")

    def go(self, start: float, end: float) -> None:
        self.page.evaluate("([start, end]) => timeline.go(start, end)", [start, end])
        self.settle()

    def top(self, group: str, row: int = 0) -> int:
        """Where a row of a group begins on the canvas."""
        label = self.page.locator(".gpulab-tl-label", has_text=group).first
        return int(label.evaluate("node => parseFloat(node.style.top)")) + 24 + 16 * row

    def pixel(self, x: float, y: float) -> str:
        """The colour of a pixel of the lanes; "" where nothing opaque was painted."""
        return self.column(x, y, 1)[0]

    def column(self, x: float, top: float, height: int) -> list[str]:
        """Pixels one below another."""
        flat = self.page.evaluate(READ, [x, top, height])
        return [f"#{r:02X}{g:02X}{b:02X}" if a == 255 else "" for r, g, b, a in zip(*[iter(flat)] * 4, strict=True)]

    def alpha(self, x: float, y: float) -> int:
        """How opaque a pixel is, 0 to 255."""
        return int(self.page.evaluate(READ, [x, y, 1])[3])

    def point(self, x: float, y: float) -> tuple[float, float]:
        """A point of the canvas as a point of the page."""
        box = self.page.locator(".gpulab-tl-stage").bounding_box()
        return box["x"] + x, box["y"] + y

    def text(self, selector: str) -> str:
        return " ".join(self.page.locator(selector).all_inner_texts())

    def keys(self, *names: str) -> None:
        for name in names:
            self.page.keyboard.press(name)
            self.settle()

    def to_lanes(self) -> None:
        """Tab until the lanes have the focus."""
        for _ in range(30):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.className") == "gpulab-tl-stage":
                return
        raise AssertionError("the lanes are not reached with Tab")

    def width_in_view(self) -> str:
        return self.text(".gpulab-tl-corner")


def answers(scene: Scene) -> Callable[[Any], None]:
    def hits(text: str) -> dict[str, Any]:
        found = [box for box in scene.boxes if text in box.name.lower()]
        told = [
            {"start_ns": box.start, "dur_ns": box.dur, "row": box.row, "name": box.name, "id": box.id} for box in found
        ]
        names = [{"name": each["name"], "count": 1, "total_ns": each["dur_ns"], "longest": each} for each in told[:10]]
        return {"count": len(found), "total_ns": sum(box.dur for box in found), "hits": told[:50], "names": names}

    def brush(start: int, end: int) -> dict[str, Any]:
        ledger = [{"key": "matrix", "label": "matrix kernels", "ns": end - start}]
        kernels = [{"name": "sgemm", "count": 1, "total_ns": 5_000_000, "mean_ns": 5_000_000.0}]
        side = {"name": "by hand", "ledger": ledger, "kernels": kernels, "note": ""}
        return {"start_ns": start, "end_ns": end, "sides": [side]}

    def answer(route: Any) -> None:
        asked = urlsplit(route.request.url)
        query = {key: value[0] for key, value in parse_qs(asked.query).items()}
        if asked.path == "/":
            page = PAGE.replace("/* script */", script("timeline.js")).replace("/* style */", style())
            return route.fulfill(body=page, content_type="text/html")
        if asked.path == "/header":
            return route.fulfill(body=json.dumps(scene.header()), content_type="application/json")
        if asked.path == "/tile":
            blob = scene.tile(int(query["level"]), int(query["index"]))
            return route.fulfill(body=blob) if blob else route.fulfill(status=204)
        if asked.path == "/search":
            return route.fulfill(body=json.dumps(hits(query["text"])), content_type="application/json")
        told = brush(int(query["start"]), int(query["end"]))
        return route.fulfill(body=json.dumps(told), content_type="application/json")

    return answer


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    opened = chromium.new_page()
    yield opened
    opened.close()


@pytest.fixture
def show(page: Any) -> Iterator[Callable[..., Shown]]:
    errors: list[str] = []

    def note(error: Any) -> None:
        errors.append(str(error))

    def begin(scene: Scene | None = None, query: str = "", width: int = WIDTH, motion: str = "reduce") -> Shown:
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(reduced_motion=motion)
        page.route(HOST + "/**", answers(scene or Scene()))
        page.on("pageerror", note)
        page.mouse.move(0, 790)
        page.goto(HOST + "/" + query)
        page.wait_for_selector(".gpulab-tl[data-painted]")
        shown = Shown(page)
        shown.settle()
        return shown

    yield begin
    page.unroute(HOST + "/**")
    page.remove_listener("pageerror", note)
    assert errors == []


def test_a_box_has_its_colour_and_a_bin_half_filled_is_half_as_high(show: Callable[..., Shown]) -> None:
    shown = show()
    kernels, copies = shown.top("kernels"), shown.top("copies")
    assert shown.pixel(490, kernels + 2) == "#0072B2"
    assert shown.pixel(600, kernels + 2) == "", "idle is not painted over"
    bin_of_copies = shown.column(600, copies, 17)
    filled = [y for y, colour in enumerate(bin_of_copies) if colour == "#009E73"]
    assert filled == list(range(9, 17)), "8 of 17 rows of pixels, at the bottom"
    assert shown.pixel(800, copies + 15) == ""
    assert "showing bins" in shown.text(".gpulab-tl-state")


def test_the_least_work_is_seen_and_so_is_the_least_idle(show: Callable[..., Shown]) -> None:
    a_bin = SPAN_NS // 512
    almost = Box(COPIES, 100 * a_bin, a_bin - a_bin // 256, 3, "almost full")
    hardly = Box(COPIES, 200 * a_bin, a_bin // 128, 3, "hardly anything")
    shown = show(Scene((almost, hardly)))
    copies = shown.top("copies")
    assert shown.column(200, copies, 17) == ["", *["#009E73"] * 16]
    assert shown.column(400, copies, 17) == [*[""] * 16, "#009E73"]


def test_nearer_the_bins_give_way_to_the_boxes_themselves(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.go(2 * QUARTER_NS, 2 * QUARTER_NS + 16 * SHORT_NS)  # 64 px each
    copies = shown.top("copies")
    assert set(shown.column(96 - 64 + 20, copies, 14)) == {"#009E73"}
    assert set(shown.column(64 + 32, copies + 1, 14)) == {""}, "between two copies is idle"
    assert "showing bins" not in shown.text(".gpulab-tl-state")


def test_a_coarse_tile_is_stretched_until_the_fine_one_is_there(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.page.evaluate("() => { gate = new Promise((open) => { window.open_gate = open; }); }")
    shown.page.evaluate("([a, b]) => timeline.go(a, b)", [2 * QUARTER_NS, 2 * QUARTER_NS + 16 * SHORT_NS])
    shown.page.wait_for_timeout(100)
    copies = shown.top("copies")
    assert shown.pixel(96, copies + 15) == "#009E73", "what there is: bins half filled"
    assert shown.pixel(32, copies + 3) == ""
    shown.page.evaluate("open_gate()")
    shown.settle()
    assert shown.pixel(32, copies + 3) == "#009E73"
    assert shown.pixel(96, copies + 15) == ""


def test_no_tile_is_asked_for_twice_and_three_are_under_way_at_most(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.page.evaluate("() => { gate = new Promise((open) => { window.open_gate = open; }); }")
    for part in (0, 1, 2, 3, 2, 1):
        shown.page.evaluate("([a, b]) => timeline.go(a, b)", [part * QUARTER_NS, (part + 1) * QUARTER_NS])
        shown.page.wait_for_timeout(60)
    assert shown.page.evaluate("flying") == 3
    shown.page.evaluate("open_gate()")
    shown.settle()
    asked = shown.page.evaluate("asked")
    assert len(asked) == len(set(asked))
    assert shown.page.evaluate("most") == 3
    last_quarter = [each for each in asked if each in ("2/3", "3/6", "3/7")]
    assert not last_quarter, "passed over while three were under way, and no longer wanted"


def test_from_focus_to_a_selected_box_with_keys_alone(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.to_lanes()
    shown.keys("Enter", "ArrowRight")
    assert [each["name"] for each in shown.page.evaluate("chosen")] == ["aten::relu"], "the last of its lane stays"
    shown.keys("ArrowLeft", "ArrowDown", "ArrowDown")
    shown.page.wait_for_timeout(50)
    last = shown.page.evaluate("chosen.at(-1)")
    assert (last["row"], last["id"], last["name"]) == (OPS + 2, 13, "cudaLaunchKernel")
    assert "cudaLaunchKernel" in shown.text(".gpulab-tl [role=status]")
    assert "cudaLaunchKernel" in shown.text("[data-panel=chosen]")
    assert "cudaLaunchKernel" in shown.text(".gpulab-tl-card")
    shown.keys("l")
    assert shown.page.evaluate("chosen.at(-1)") == {
        "row": KERNELS,
        "id": 20,
        "start_ns": QUARTER_NS,
        "dur_ns": QUARTER_NS,
        "name": "sgemm",
    }
    shown.keys("Escape")
    assert shown.page.evaluate("chosen.at(-1)") is None
    assert shown.page.locator("[data-panel=chosen]").is_hidden()


def test_keys_are_the_timelines_own(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.page.evaluate("document.addEventListener('keydown', (event) => (window.leaked ??= []).push(event.key))")
    assert shown.page.locator(".gpulab-tl").get_attribute("data-lm-suppress-shortcuts") == "true"
    shown.to_lanes()
    shown.page.evaluate("window.leaked = []")
    shown.keys("ArrowDown", "b", "m", "Escape", "f", "?")
    assert shown.page.evaluate("window.leaked") == []
    whole = shown.width_in_view()
    shown.keys("+")
    assert shown.width_in_view() != whole
    shown.keys("Home")
    assert shown.width_in_view() == whole


def test_a_search_lists_lights_and_leads(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.to_lanes()
    shown.keys("/")
    shown.page.keyboard.type("aten::")
    options = shown.page.locator("[role=option]")
    options.first.wait_for()
    assert shown.pixel(490, shown.top("kernels") + 2) != "#0072B2", "what does not match steps back"
    assert options.first.evaluate("node => node.tabIndex") == 0
    assert options.nth(1).evaluate("node => node.tabIndex") == -1
    shown.keys("ArrowDown", "ArrowDown", "Enter")
    assert shown.page.evaluate("chosen.at(-1).name") == "aten::relu"
    assert shown.page.evaluate("document.activeElement.className") == "gpulab-tl-stage"
    assert options.first.is_hidden()


def test_a_window_marked_with_the_pointer_has_its_ledger(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.page.keyboard.down("Shift")
    shown.page.mouse.move(*shown.point(256, 100))
    shown.page.mouse.down()
    shown.page.mouse.move(*shown.point(400, 100))
    shown.page.mouse.move(*shown.point(512, 100))
    shown.page.mouse.up()
    shown.page.keyboard.up("Shift")
    shown.page.wait_for_selector("[data-panel=brush] table")
    assert shown.page.evaluate("brushed") == [[QUARTER_NS, 2 * QUARTER_NS]]
    told = shown.text("[data-panel=brush]")
    assert "matrix kernels 268 ms (100 %)" in told
    assert "sgemm" in told


def test_a_group_folds_to_its_first_row(show: Callable[..., Shown]) -> None:
    shown = show()
    label = shown.page.get_by_role("button", name="main thread")
    below = shown.top("kernels")
    label.press("Enter")
    shown.settle()
    assert label.get_attribute("aria-expanded") == "false"
    assert shown.top("kernels") == below - 32
    assert shown.pixel(100, shown.top("main thread") + 2) == "#C99400", "the outermost operator is still drawn"
    shown.page.evaluate("timeline.root.querySelector('.gpulab-tl-stage').focus()")
    shown.keys("o")
    assert label.get_attribute("aria-expanded") == "true"
    assert shown.top("kernels") == below


def test_names_from_a_trace_are_text_wherever_they_stand(show: Callable[..., Shown]) -> None:
    name = "<img src=x onerror='window.broken=1'><script>window.broken=1</script>\"'"
    finding = {"rule": name, "claim": name, "confidence": "certain", "spans": [[0, QUARTER_NS]], "more": 0}
    scene = Scene((Box(KERNELS, 0, SPAN_NS, 2, name, 20, name),), name, (name,), findings=(finding,))
    shown = show(scene)
    shown.page.mouse.move(*shown.point(300, shown.top("kernels") + 4))
    shown.page.mouse.down()
    shown.page.mouse.up()
    shown.page.locator(".gpulab-tl-chip").click()
    shown.page.evaluate("timeline.root.querySelector('.gpulab-tl-stage').focus()")
    shown.keys("t")
    shown.page.evaluate("timeline.find('img')")
    shown.page.wait_for_selector("[role=option]")
    inside = ".gpulab-tl-title", ".gpulab-tl-chip", ".gpulab-tl-claim", ".gpulab-tl-notes", "[data-panel=chosen]"
    for place in (*inside, "[data-panel=table]", "[role=option]"):
        assert name in shown.text(place).replace("\n", " "), place
    assert shown.page.locator(".gpulab-tl :is(img, script)").count() == 0
    assert shown.page.evaluate("window.broken") is None


def test_a_wheel_scrolls_the_notebook_until_the_timeline_has_the_focus(show: Callable[..., Shown]) -> None:
    shown = show()
    whole = shown.width_in_view()
    shown.page.mouse.move(*shown.point(500, 60))
    shown.page.mouse.wheel(0, -1)
    shown.page.mouse.wheel(0, 60)
    shown.page.wait_for_function("scrollY > 0")
    assert shown.width_in_view() == whole
    shown.page.evaluate("scrollTo(0, 0)")
    shown.page.mouse.click(*shown.point(900, 60))
    shown.page.mouse.wheel(0, -300)
    shown.page.wait_for_function(
        "whole => document.querySelector('.gpulab-tl-corner').textContent !== whole", arg=whole
    )
    assert shown.page.evaluate("scrollY") == 0


def test_a_drag_pans_a_double_click_fits_and_two_fingers_zoom(show: Callable[..., Shown]) -> None:
    shown = show()
    told = """async () => {
      await timeline.settled();
      await new Promise((done) => setTimeout(done, 260));
      return windows.at(-1);
    }"""
    shown.go(QUARTER_NS, 2 * QUARTER_NS)
    shown.page.mouse.move(*shown.point(600, 60))
    shown.page.mouse.down()
    shown.page.mouse.move(*shown.point(300, 60))
    shown.page.mouse.move(*shown.point(344, 60))
    shown.page.mouse.up()
    assert shown.page.evaluate(told) == [QUARTER_NS * 1.25, QUARTER_NS * 2.25]
    shown.page.mouse.dblclick(*shown.point(300, shown.top("kernels") + 4))
    assert shown.page.evaluate(told) == pytest.approx([QUARTER_NS * 0.95, QUARTER_NS * 2.05], rel=1e-6)
    shown.go(0, SPAN_NS)
    shown.page.evaluate(
        """() => {
          const stage = document.querySelector(".gpulab-tl-stage"), { left, top } = stage.getBoundingClientRect();
          stage.setPointerCapture = () => {}; // these fingers are made here
          const touch = (type, pointerId, x) => stage.dispatchEvent(new PointerEvent(type,
            { pointerId, clientX: left + x, clientY: top + 60, pointerType: "touch", bubbles: true }));
          touch("pointerdown", 1, 462), touch("pointerdown", 2, 562);
          touch("pointermove", 1, 412), touch("pointermove", 2, 612);
          touch("pointerup", 1, 412), touch("pointerup", 2, 612);
        }"""
    )
    assert shown.page.evaluate(told) == pytest.approx([QUARTER_NS, 3 * QUARTER_NS], rel=1e-3)


def test_a_hole_in_a_curve_stays_a_hole(show: Callable[..., Shown]) -> None:
    shown = show()
    floor = shown.top("power") + 36
    assert shown.alpha(600, floor - 4) > shown.alpha(740, floor - 4), "an area where it was read, the ground elsewhere"
    shown.page.mouse.move(*shown.point(600, floor))
    shown.settle()
    assert "200 W" in shown.text(".gpulab-tl-value")
    shown.page.mouse.move(*shown.point(720, floor))
    shown.settle()
    assert "not measured here" in shown.text(".gpulab-tl-value")


def test_a_finding_leads_to_the_place_that_shows_most(show: Callable[..., Shown]) -> None:
    spans = [[0, QUARTER_NS // 8], [2 * QUARTER_NS, 3 * QUARTER_NS]]
    finding = {"rule": "no_workers", "claim": "It waits.", "confidence": "certain", "spans": spans, "more": 3}
    shown = show(Scene(findings=(finding,)))
    chip = shown.page.locator(".gpulab-tl-chip")
    chip.click()
    shown.settle()
    assert chip.get_attribute("aria-pressed") == "true"
    assert "Evidence 2 of 2: 268 ms" in shown.text(".gpulab-tl-claim")
    assert "the 2 longest of 5" in shown.text(".gpulab-tl-claim")
    chip.click()
    shown.settle()
    assert "Evidence 1 of 2: 33.6 ms" in shown.text(".gpulab-tl-claim")


@pytest.mark.parametrize(("motion", "at_once"), [("reduce", True), ("no-preference", False)])
def test_a_zoom_glides_only_where_motion_is_welcome(show: Callable[..., Shown], motion: str, at_once: bool) -> None:
    shown = show(motion=motion)
    after_a_frame = """async ([start, end]) => {
      timeline.go(start, end);
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      return document.querySelector('.gpulab-tl-corner').textContent;
    }"""
    early = shown.page.evaluate(after_a_frame, [QUARTER_NS, QUARTER_NS + 1000 * SHORT_NS / 64])
    shown.settle()
    assert (early == shown.width_in_view()) is at_once


def test_a_file_without_finer_tiles_says_so_and_draws_what_it_holds(show: Callable[..., Shown]) -> None:
    shown = show(Scene(held=0), "?offline")
    shown.go(2 * QUARTER_NS, 2 * QUARTER_NS + 16 * SHORT_NS)
    assert "this file holds no finer detail here" in shown.text(".gpulab-tl-state")
    assert shown.pixel(96, shown.top("copies") + 15) == "#009E73"


def test_a_lane_is_also_a_table(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.to_lanes()
    shown.keys("t")
    rows = [row.split("\t") for row in shown.text("[data-panel=table] tbody").splitlines()]
    assert [row[0] for row in rows] == ["aten::linear", "aten::relu"]
    assert rows[1][2] == "134 ms"
    shown.page.get_by_role("combobox", name="lane").select_option(str(COPIES))
    assert "too fine" in shown.text("[data-panel=table]")


def test_where_there_is_nothing_to_draw_it_says_why(show: Callable[..., Shown]) -> None:
    shown = show(Scene(empty=True, notes=("Only sensors were recorded, and none answered.",)))
    assert "none answered" in shown.text(".gpulab-tl-empty")


def test_in_a_narrow_cell_labels_stand_above_their_lanes_and_nothing_sticks_out(show: Callable[..., Shown]) -> None:
    shown = show(width=480)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 480
    stage = shown.page.locator(".gpulab-tl-stage").bounding_box()
    assert stage["x"] == 0
    shown.page.mouse.move(470, stage["y"] + shown.top("steps") + 24)
    assert "step 3" in shown.text(".gpulab-tl-card")
    card = shown.page.locator(".gpulab-tl-card").bounding_box()
    assert card["x"] >= 0
    assert card["x"] + card["width"] <= 480


def test_with_all_its_panels_open_axe_finds_no_serious_fault(show: Callable[..., Shown]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install -e '.[dev]' has axe-core")
    finding = {
        "rule": "no_workers",
        "claim": "It waits.",
        "confidence": "certain",
        "spans": [[0, QUARTER_NS]],
        "more": 0,
    }
    shown = show(Scene(findings=(finding,), notes=("Events were recorded for steps 3-14 only.",)))
    shown.to_lanes()
    shown.keys("n", "Enter", "b", "t", "?")
    shown.page.evaluate("timeline.find('aten')")
    shown.page.wait_for_selector("[role=option]")
    found = axe.Axe().run(shown.page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []


def test_it_leaves_nothing_behind(show: Callable[..., Shown]) -> None:
    shown = show()
    shown.page.evaluate("timeline.destroy()")
    shown.page.set_viewport_size({"width": 700, "height": 700})
    shown.page.wait_for_timeout(50)
    assert shown.page.evaluate("document.getElementById('el').childElementCount") == 0
