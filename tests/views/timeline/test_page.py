"""The timeline as an HTML file: size limit, security policy, stored pieces, and tiles that the page cuts itself."""

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

from gpulab.views.timeline.page import MAX_PAGE_BYTES, timeline_page
from gpulab.views.timeline.scene.scene import Scene, build_scene
from gpulab.views.timeline.script import bundle_script
from gpulab.views.timeline.tiles.encoding import decode_tile
from gpulab.views.timeline.tiles.size_limit import MAX_SHEET_BOXES, select_pieces, shuffle_bytes
from gpulab.views.timeline.tiles.uncut_spans import count_boxes, encode_sheet
from tests.support.front_end.browser import OPEN_MS
from tests.support.runs.large_run import HOSTILE, RARE, diagnosis_of, large_run
from tests.support.runs.made_runs import MS, event, run_of, stepped

EVENTS = 24_000
REPORT = '<div role="group" aria-label="report">the report</div>'


@pytest.fixture(scope="module")
def large_scene() -> Scene:
    return build_scene(diagnosis_of(large_run(EVENTS)))


@pytest.fixture(scope="module")
def html(large_scene: Scene) -> str:
    return timeline_page(large_scene, REPORT)


def data_of(html: str) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json" id="gpulab-data">(.*?)</script>', html).group(1))


# Content of the file.


def test_it_runs_one_script_allowed_by_its_policy_and_loads_nothing(html):
    [code] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = hashlib.sha256(code.encode()).digest()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html).group(1)
    assert b64decode(re.search(r"script-src 'sha256-([^']*)'", policy).group(1)) == digest
    assert "default-src 'none'" in policy
    assert html.count("<script") == 2, "the code and the JSON data"
    assert not re.search(r"""(src|href)=["']?(?!data:)\w""", html)
    assert "://" not in html.replace("http://www.w3.org/2000/svg", "")


def test_the_report_is_above_the_timeline_or_below_it(large_scene, html):
    assert html.index(REPORT) < html.index('id="gpulab-timeline"') < html.index("gpulab-data")
    timeline_first = timeline_page(large_scene, REPORT, 400_000, timeline_first=True)
    timeline_at = timeline_first.index('id="gpulab-timeline"')
    assert timeline_at < timeline_first.index(REPORT) < timeline_first.index("gpulab-data")
    assert "<h2>" not in timeline_page(large_scene, max_bytes=400_000)


def test_no_name_can_escape_from_the_data(large_scene, html):
    hits = large_scene.search("alert(1)")["hits"]
    assert hits, "the hostile name is in the run"
    data = re.search(r'id="gpulab-data">(.*?)</script>', html).group(1)
    assert not set("<>&\u2028\u2029\u202e") & set(data)
    hostile = timeline_page(build_scene(diagnosis_of(large_run(EVENTS, name="</script><script>alert(1)</script>"))))
    assert hostile.count("<script") == 2
    assert data_of(hostile)["header"]["title"].startswith("</script>")
    assert "alert(1)</script>" not in hostile.replace(re.search(r"<script>(.*?)</script>", hostile, re.DOTALL)[0], "")


@pytest.mark.full
@pytest.mark.parametrize("most_bytes", [400_000, 700_000, MAX_PAGE_BYTES])
def test_its_size_stays_within_the_limit(most_bytes):
    run = large_run(150_000)
    assert len(timeline_page(build_scene(diagnosis_of(run)), REPORT, most_bytes).encode()) <= most_bytes


def test_a_run_of_thirty_thousand_events_is_stored_completely():
    run_scene = build_scene(diagnosis_of(large_run(30_000)))
    assert select_pieces(run_scene, MAX_PAGE_BYTES - 300_000).complete
    assert select_pieces(run_scene, 60_000).complete is False


def test_the_initial_view_is_stored_in_full_detail():
    run_scene = build_scene(diagnosis_of(large_run(150_000)))
    selection = select_pieces(run_scene, 250_000)
    assert not selection.complete
    start, end = run_scene.header()["home"]
    sheets = [(level, index) for level, index, is_sheet, _ in selection.pieces if is_sheet]
    assert sheets
    widths = {piece: run_scene.tile_ns(piece[0]) for piece in sheets}
    spans = [(piece[1] * width, (piece[1] + 1) * width) for piece, width in widths.items()]
    assert sum(max(0, min(end, b) - max(start, a)) for a, b in spans) == end - start, "sheets cover the initial view"
    assert [piece[:2] for piece in selection.pieces[:3]] == [(0, 0), (1, 0), (1, 1)]


def test_a_sheet_contains_every_box_of_its_span(large_scene):
    level, index = 3, 2
    assert count_boxes(large_scene, level, index) > MAX_SHEET_BOXES / 2
    head, columns = decode_tile(encode_sheet(large_scene, level, index))
    assert not head["binned"]
    start, end = head["start_ns"], head["end_ns"]
    for number, row in enumerate(large_scene.rows):
        if row is None:
            continue
        expected = (row.start_ns < end) & (row.end_ns > start)
        mask = columns["row"] == number
        assert sorted(columns["start"][mask]) == sorted(row.start_ns[expected])
        assert columns["dur"][mask].sum() == (row.end_ns - row.start_ns)[expected].sum()


def test_shuffled_bytes_are_stored_plane_by_plane(large_scene):
    tile = large_scene.tile(4, 3)
    mixed = shuffle_bytes(tile)
    assert mixed != tile
    assert sorted(mixed) == sorted(tile)
    head, _ = decode_tile(mixed)
    [offset, count, _] = head["columns"]["start"]
    planes = np.frombuffer(mixed, np.uint8, 8 * count, offset).reshape(8, count)
    assert np.array_equal(planes.T.reshape(-1).view("<f8"), decode_tile(tile)[1]["start"])


def test_the_search_index_contains_all_names_of_the_run(large_scene, html):
    index = json.loads(gzip.decompress(b64decode(data_of(html)["names"])))
    names = large_scene.search("", max_results=10_000)["names"]
    assert index == {"names": json.loads(json.dumps(names)), "all": True}
    assert RARE in {each["name"] for each in index["names"]}


# In a browser, offline.


def open_page(chromium: Any, path: Path) -> Any:
    """Open the page and wait until it is painted; errors are collected in `page.complaints`."""
    window = chromium.new_context(viewport={"width": 1100, "height": 900}, offline=True).new_page()
    window.complaints = []
    window.on("pageerror", lambda error: window.complaints.append(str(error)))
    window.on("console", lambda line: window.complaints.append(line.text) if line.type == "error" else None)
    window.on("dialog", lambda dialog: window.complaints.append("a dialog"))
    window.goto(path.as_uri())
    window.locator(".gpulab-tl[data-painted]").wait_for(timeout=OPEN_MS)
    return window


@pytest.fixture(scope="module")
def saved(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "timeline.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.mark.browser
def test_the_file_opens_offline_and_states_that_it_is_complete(chromium, saved):
    window = open_page(chromium, saved)
    assert "every event of the run" in window.inner_text("#gpulab-status")
    assert "the report" in window.inner_text("body")
    assert window.complaints == []
    window.context.close()


@pytest.mark.browser
def test_search_in_the_file_finds_and_selects_an_event(chromium, saved):
    window = open_page(chromium, saved)
    window.locator(".gpulab-tl-stage").focus()
    window.keyboard.press("/")
    window.keyboard.type("alert(1)")
    window.get_by_role("option").first.wait_for()
    window.keyboard.press("Enter")
    window.locator('[data-panel]:has-text("Selected")').first.wait_for()
    text = window.inner_text(".gpulab-tl")
    assert HOSTILE[:30] in text
    assert window.complaints == [], "a hostile name is text"
    assert "no finer detail" not in text
    window.context.close()


@pytest.mark.browser
def test_a_brushed_window_in_the_file_has_the_same_ledger_as_in_python(chromium, saved, large_scene):
    window = open_page(chromium, saved)
    windows = [(50 * MS, 60 * MS), (41 * MS, 47 * MS), (0, large_scene.span_ns), (100_000_123, 100_450_017)]
    code = f"{bundle_script('data/file.js')}; const file = new StoredRun(data);"
    data = data_of(saved.read_text(encoding="utf-8"))
    blank = chromium.new_page()
    for start, end in windows:
        answer = blank.evaluate(f"async (data) => {{ {code} return file.brush({start}, {end}); }}", data)
        [side], [expected] = answer["sides"], large_scene.brush(start, end)["sides"]
        assert {part["key"]: part["ns"] for part in side["ledger"]} == {p["key"]: p["ns"] for p in expected["ledger"]}
        assert {part["label"] for part in side["ledger"]} == {part["label"] for part in expected["ledger"]}
        by_name = {each["name"]: (each["count"], each["total_ns"]) for each in expected["kernels"]}
        assert {each["name"]: (each["count"], each["total_ns"]) for each in side["kernels"]} == by_name
        assert side["note"] == "", "exact if the file is complete"
    blank.close()
    window.context.close()


@pytest.fixture(scope="module")
def tangled() -> Scene:
    """A scene with boxes that overlap without nesting, and boxes of zero duration."""
    from gpulab.rules import diagnose
    from gpulab.tables import EventKind

    random = np.random.default_rng(7)

    def step(at):
        times = zip(random.uniform(0, 9, 120).tolist(), random.exponential(0.05, 120).tolist(), strict=True)
        kernels = [event(EventKind.KERNEL, f"k{n % 5}", at + offset, dur) for n, (offset, dur) in enumerate(times)]
        ops = [event(EventKind.OP, f"aten::{n % 3}", at + 0.3 * n, 0.2) for n in range(30)]
        return [*kernels, *ops, event(EventKind.MEMCPY, "copy", at, 0.0, stream=9)]

    events = stepped(step, count=8, step_ms=10.0)
    return build_scene(diagnose(run_of(sorted(events, key=lambda row: (row["start_ns"], -row["dur_ns"])))))


@pytest.mark.browser
@pytest.mark.parametrize("fixture", ["large_scene", "tangled"])
def test_a_tile_cut_in_the_page_equals_the_tile_from_python(chromium, request, fixture):
    run_scene = request.getfixturevalue(fixture)
    blank = chromium.new_page()
    level, index = (3, 2) if fixture == "large_scene" else (0, 0)
    tiles = [(level + deeper, (index << deeper) + (1 << deeper) // 2) for deeper in range(7)]
    windows = [[i * run_scene.tile_ns(k), min((i + 1) * run_scene.tile_ns(k), run_scene.span_ns)] for k, i in tiles]
    code = CUT.replace("CODE", bundle_script("data/cut.js"))
    cuts = blank.evaluate(code, [encoded(encode_sheet(run_scene, level, index)), tiles, windows])
    blank.close()
    for tile, (start, end), text in zip(tiles, windows, cuts, strict=True):
        page_tile, python_tile = b64decode(text), run_scene.tile(*tile)
        assert filled(page_tile) == pytest.approx(filled(python_tile), rel=0.01, abs=0.003 * (end - start))
        if wide(python_tile) == len(decode_tile(python_tile)[1]["start"]):
            assert boxes(page_tile) >= boxes(python_tile)
        (length,) = struct.unpack_from("<I", page_tile)
        assert (4 + length) % 8 == 0


CUT = """([text, places, windows]) => { CODE;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const encode = (buffer) => btoa(Array.from(new Uint8Array(buffer), (byte) => String.fromCharCode(byte)).join(""));
  return places.map((place, at) => encode(new TileCutter(bytes.buffer, ...windows[at]).tile(...place)));
}"""


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


def boxes(tile: bytes) -> set[tuple[Any, ...]]:
    head, columns = decode_tile(tile)
    names = [head["names"][each] for each in columns["name"]]
    return set(zip(columns["start"], columns["dur"], columns["row"], columns["key"], names, columns["id"], strict=True))


def wide(tile: bytes) -> int:
    """Count the boxes that are at least one of 512 bins wide."""
    head, columns = decode_tile(tile)
    return int((columns["dur"] >= (head["end_ns"] - head["start_ns"]) / 512).sum())


def filled(tile: bytes) -> list[float]:
    """Return for each row the time of a tile that its boxes and bins cover."""
    head, columns = decode_tile(tile)
    start, end = head["start_ns"], head["end_ns"]
    total = np.zeros(64)
    for row in np.unique(columns["row"]).tolist():
        mask = columns["row"] == row
        spans = sorted(zip(columns["start"][mask], columns["start"][mask] + columns["dur"][mask], strict=True))
        reach = start
        for first, last in spans:
            total[row] += max(0, min(last, end) - max(first, reach, start))
            reach = max(reach, last)
    for layer in head["bins_of"]:
        shares = np.frombuffer(tile, np.uint8, head["bins"], layer["offset"])
        total[layer["row"]] += shares.sum() / 255 * (end - start) / head["bins"]
    return total.tolist()


@pytest.mark.full
@pytest.mark.browser
def test_the_file_has_no_serious_accessibility_violation(chromium, saved):
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
        violations = axe.run(window).response["violations"]
        serious = [each for each in violations if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []
        window.context.close()
