"""The timeline as a file: small, closed to the world, whole where the run is small, true where it cuts by itself."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import struct
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpulab.views.timeline.page import MOST_BYTES, page
from gpulab.views.timeline.scene.scene import Scene, scene
from gpulab.views.timeline.script import script
from gpulab.views.timeline.tiles.encoding import unpacked
from gpulab.views.timeline.tiles.file_budget import SHEET_BOXES, held, shuffled
from gpulab.views.timeline.tiles.sheets import boxes_within, sheet
from tests.support.runs.large_run import HOSTILE, RARE, judged, large_run
from tests.support.runs.made_runs import MS, event, run_of, stepped

EVENTS = 24_000
REPORT = '<div role="group" aria-label="report">the report</div>'


@pytest.fixture(scope="module")
def made() -> Scene:
    return scene(judged(large_run(EVENTS)))


@pytest.fixture(scope="module")
def html(made: Scene) -> str:
    return page(made, REPORT)


def data_of(html: str) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json" id="gpulab-data">(.*?)</script>', html).group(1))


# What it is made of.


def test_it_runs_one_script_which_its_policy_names_and_loads_nothing(html):
    [code] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = hashlib.sha256(code.encode()).digest()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html).group(1)
    assert b64decode(re.search(r"script-src 'sha256-([^']*)'", policy).group(1)) == digest
    assert "default-src 'none'" in policy
    assert html.count("<script") == 2, "the code, and the data, which is none"
    assert not re.search(r"""(src|href)=["']?(?!data:)\w""", html)
    assert "://" not in html.replace("http://www.w3.org/2000/svg", "")


def test_the_report_stands_in_it_above_the_timeline_or_under_it(made, html):
    assert html.index(REPORT) < html.index('id="gpulab-timeline"') < html.index("gpulab-data")
    under = page(made, REPORT, 400_000, timeline_first=True)
    assert under.index('id="gpulab-timeline"') < under.index(REPORT) < under.index("gpulab-data")
    assert "<h2>" not in page(made, most_bytes=400_000)


def test_no_name_can_leave_the_data(made, html):
    hits = made.search("alert(1)")["hits"]
    assert hits, "the hostile name is in the run"
    data = re.search(r'id="gpulab-data">(.*?)</script>', html).group(1)
    assert not set("<>&\u2028\u2029\u202e") & set(data)
    named = large_run(EVENTS, name="</script><script>alert(1)</script>")
    hostile = page(scene(judged(named)))
    assert hostile.count("<script") == 2
    assert data_of(hostile)["header"]["title"].startswith("</script>")
    assert "alert(1)</script>" not in hostile.replace(re.search(r"<script>(.*?)</script>", hostile, re.DOTALL)[0], "")


@pytest.mark.parametrize("most_bytes", [400_000, 700_000, MOST_BYTES])
def test_it_is_no_larger_than_asked(most_bytes):
    run = large_run(150_000)
    assert len(page(scene(judged(run)), REPORT, most_bytes).encode()) <= most_bytes


def test_a_run_of_thirty_thousand_events_is_held_as_a_whole():
    events = scene(judged(large_run(30_000)))
    found = held(events, MOST_BYTES - 300_000)
    assert found.whole
    assert held(events, 60_000).whole is False


def test_what_is_looked_at_first_is_held_first():
    large = scene(judged(large_run(150_000)))
    found = held(large, 250_000)
    assert not found.whole
    start, end = large.header()["home"]
    inside = [(level, index) for level, index, is_sheet, _ in found.pieces if is_sheet]
    assert inside
    widths = {place: large.tile_ns(place[0]) for place in inside}
    spans = [(place[1] * width, (place[1] + 1) * width) for place, width in widths.items()]
    assert sum(max(0, min(end, b) - max(start, a)) for a, b in spans) == end - start, (
        "all of the first window is there, box by box"
    )
    assert [piece[:2] for piece in found.pieces[:3]] == [(0, 0), (1, 0), (1, 1)]


def test_a_sheet_tells_every_box_of_its_stretch(made):
    level, index = 3, 2
    assert boxes_within(made, level, index) > SHEET_BOXES / 2
    head, columns = unpacked(sheet(made, level, index))
    assert not head["binned"]
    start, end = head["start_ns"], head["end_ns"]
    for number, row in enumerate(made.rows):
        if row is None:
            continue
        known = (row.start_ns < end) & (row.end_ns > start)
        mine = columns["row"] == number
        assert sorted(columns["start"][mine]) == sorted(row.start_ns[known])
        assert columns["dur"][mine].sum() == (row.end_ns - row.start_ns)[known].sum()


def test_the_order_of_bytes_in_the_file_is_undone_by_hand(made):
    tile = made.tile(4, 3)
    mixed = shuffled(tile)
    assert mixed != tile
    assert sorted(mixed) == sorted(tile)
    head, _ = unpacked(mixed)
    [offset, count, _] = head["columns"]["start"]
    planes = np.frombuffer(mixed, np.uint8, 8 * count, offset).reshape(8, count)
    assert np.array_equal(planes.T.reshape(-1).view("<f8"), unpacked(tile)[1]["start"])


def test_the_names_of_the_file_are_those_of_the_run(made, html):
    told = json.loads(gzip.decompress(b64decode(data_of(html)["names"])))
    known = made.search("", most=10_000)["names"]
    assert told == {"names": json.loads(json.dumps(known)), "all": True}
    assert RARE in {each["name"] for each in told["names"]}


# In a browser, offline.


def opened(chromium: Any, path: Path, **more: Any) -> Any:
    """The page, painted; what it complains of is kept in `page.complaints`."""
    window = chromium.new_context(viewport={"width": 1100, "height": 900}, offline=True, **more).new_page()
    window.complaints = []
    window.on("pageerror", lambda error: window.complaints.append(str(error)))
    window.on("console", lambda said: window.complaints.append(said.text) if said.type == "error" else None)
    window.on("dialog", lambda dialog: window.complaints.append("a dialog"))
    window.goto(path.as_uri())
    window.locator(".gpulab-tl[data-painted]").wait_for(timeout=20_000)
    return window


@pytest.fixture(scope="module")
def saved(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "timeline.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.mark.browser
def test_the_file_opens_offline_and_says_that_it_is_whole(chromium, saved):
    window = opened(chromium, saved)
    assert "This file holds every event of the run." in window.inner_text("body")
    assert "the report" in window.inner_text("body")
    assert window.complaints == []
    window.context.close()


@pytest.mark.browser
def test_searched_in_the_file_a_name_is_found_and_gone_to(chromium, saved):
    window = opened(chromium, saved)
    window.locator(".gpulab-tl-stage").focus()
    window.keyboard.press("/")
    window.keyboard.type("alert(1)")
    window.get_by_role("option").first.wait_for()
    window.keyboard.press("Enter")
    window.locator('[data-panel]:has-text("Selected")').first.wait_for()
    shown = window.inner_text(".gpulab-tl")
    assert HOSTILE[:30] in shown
    assert window.complaints == [], "a hostile name is text"
    assert "no finer detail" not in shown
    window.context.close()


@pytest.mark.browser
def test_brushed_in_the_file_a_window_has_the_ledger_of_the_run(chromium, saved, made):
    window = opened(chromium, saved)
    asked = [(50 * MS, 60 * MS), (41 * MS, 47 * MS), (0, made.span_ns), (100_000_123, 100_450_017)]
    code = f"{script('data/file.js')}; const file = new HeldRun(data);"
    data = data_of(saved.read_text(encoding="utf-8"))
    blank = chromium.new_page()
    for start, end in asked:
        told = blank.evaluate(f"async (data) => {{ {code} return file.brush({start}, {end}); }}", data)
        [mine], [known] = told["sides"], made.brush(start, end)["sides"]
        assert {part["key"]: part["ns"] for part in mine["ledger"]} == {p["key"]: p["ns"] for p in known["ledger"]}
        assert {part["label"] for part in mine["ledger"]} == {part["label"] for part in known["ledger"]}
        by_name = {each["name"]: (each["count"], each["total_ns"]) for each in known["kernels"]}
        assert {each["name"]: (each["count"], each["total_ns"]) for each in mine["kernels"]} == by_name
        assert mine["note"] == "", "a whole file tells it exactly"
    blank.close()
    window.context.close()


@pytest.fixture(scope="module")
def tangled() -> Scene:
    """Boxes that overlap, that do not nest, of no length, and one of the whole run."""
    from gpulab.rules import diagnose
    from gpulab.tables import Kind

    random = np.random.default_rng(7)

    def step(at):
        drawn = zip(random.uniform(0, 9, 120).tolist(), random.exponential(0.05, 120).tolist(), strict=True)
        kernels = [event(Kind.KERNEL, f"k{n % 5}", at + late, dur) for n, (late, dur) in enumerate(drawn)]
        ops = [event(Kind.OP, f"aten::{n % 3}", at + 0.3 * n, 0.2) for n in range(30)]
        return [*kernels, *ops, event(Kind.MEMCPY, "copy", at, 0.0, stream=9)]

    events = stepped(step, count=8, step_ms=10.0)
    return scene(diagnose(run_of(sorted(events, key=lambda each: (each["start_ns"], -each["dur_ns"])))))


@pytest.mark.browser
@pytest.mark.parametrize("which", ["made", "tangled"])
def test_a_tile_cut_in_the_page_tells_what_python_cuts(chromium, request, which):
    drawn = request.getfixturevalue(which)
    blank = chromium.new_page()
    level, index = (3, 2) if which == "made" else (0, 0)
    places = [(level + deeper, (index << deeper) + (1 << deeper) // 2) for deeper in range(7)]
    windows = [[i * drawn.tile_ns(k), min((i + 1) * drawn.tile_ns(k), drawn.span_ns)] for k, i in places]
    code = CUT.replace("CODE", script("data/cut.js"))
    cuts = blank.evaluate(code, [encoded(sheet(drawn, level, index)), places, windows])
    blank.close()
    for place, (start, end), told in zip(places, windows, cuts, strict=True):
        mine, known = b64decode(told), drawn.tile(*place)
        assert filled(mine) == pytest.approx(filled(known), rel=0.01, abs=0.003 * (end - start))
        if wide(known) == len(unpacked(known)[1]["start"]):
            assert boxes(mine) >= boxes(known)
        (length,) = struct.unpack_from("<I", mine)
        assert (4 + length) % 8 == 0


CUT = """([text, places, windows]) => { CODE;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const encode = (buffer) => btoa(Array.from(new Uint8Array(buffer), (byte) => String.fromCharCode(byte)).join(""));
  return places.map((place, at) => encode(new TileCutter(bytes.buffer, ...windows[at]).tile(...place)));
}"""


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


def boxes(tile: bytes) -> set[tuple[Any, ...]]:
    head, columns = unpacked(tile)
    names = [head["names"][each] for each in columns["name"]]
    return set(zip(columns["start"], columns["dur"], columns["row"], columns["key"], names, columns["id"], strict=True))


def wide(tile: bytes) -> int:
    """How many boxes are at least a bin of 512 wide."""
    head, columns = unpacked(tile)
    return int((columns["dur"] >= (head["end_ns"] - head["start_ns"]) / 512).sum())


def filled(tile: bytes) -> list[float]:
    """By row, the time of a tile that its boxes and bins cover."""
    head, columns = unpacked(tile)
    start, end = head["start_ns"], head["end_ns"]
    total = np.zeros(64)
    for row in np.unique(columns["row"]).tolist():
        mine = columns["row"] == row
        spans = sorted(zip(columns["start"][mine], columns["start"][mine] + columns["dur"][mine], strict=True))
        reach = start
        for first, last in spans:
            total[row] += max(0, min(last, end) - max(first, reach, start))
            reach = max(reach, last)
    for each in head["bins_of"]:
        shares = np.frombuffer(tile, np.uint8, head["bins"], each["offset"])
        total[each["row"]] += shares.sum() / 255 * (end - start) / head["bins"]
    return total.tolist()


@pytest.mark.browser
def test_axe_finds_nothing_serious_in_the_file(chromium, saved):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for scheme in ("light", "dark"):
        size = {"width": 1100, "height": 900}
        window = chromium.new_context(viewport=size, color_scheme=scheme, bypass_csp=True).new_page()
        window.goto(saved.as_uri())
        window.locator(".gpulab-tl[data-painted]").wait_for()
        window.locator(".gpulab-tl-stage").focus()
        for key in "b?t":
            window.keyboard.press(key)
            window.wait_for_timeout(150)
        found = [each for each in axe.run(window).response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []
        window.context.close()
