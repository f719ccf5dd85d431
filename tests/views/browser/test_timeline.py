"""The timeline of a million events in a real JupyterLab: seen, driven by keys alone, asked, and found again later.

What is measured here (first paint, frames, messages, the notebook's growth) is printed. Times are never asserted.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.front_end.browser import Notebook
from tests.support.front_end.services import JupyterLab
from tests.support.runs.large_run import RARE

pytestmark = pytest.mark.browser

MOST_MESSAGE, MOST_GROWTH = 150_000, 300_000
SETUP = """
import json, time
from pathlib import Path
import matplotlib.pyplot as plt
from tests.support.runs.large_run import judged, large_run
from gpulab.intervals import covered_ns
from gpulab.views.timeline.scene.scene import scene
from gpulab.views.timeline.view import TimelineView
found = judged(large_run())
view = TimelineView(scene(found))
"""
BUSY = """
plt.plot([3, 1, 2], label="a line of the user's own")
until = time.monotonic() + 60
while time.monotonic() < until and not Path("enough").exists():
    sum(range(1000))
plt.legend()
print(json.dumps({"lines": len(plt.gca().lines), "asked": Path("enough").exists()}))
"""
LEDGER = """
spans = {part.label: found.ledger.spans[part.key] for part in found.ledger.parts}
times = {name: int(covered_ns(each, *view.window)) for name, each in spans.items()}
print(json.dumps({"window": view.window, **times}))
"""
CELLS = (SETUP, "view", BUSY, LEDGER, "print(json.dumps(view.selected))", "view.show('no_workers')")
SETUP_CELL, VIEW_CELL, BUSY_CELL, LEDGER_CELL, SELECTED_CELL, SHOW_CELL = range(6)


@pytest.fixture(scope="module")
def folder(jupyterlab: JupyterLab) -> Path:
    import nbformat

    made = jupyterlab.subfolder("timeline")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), made / "timeline.ipynb")
    return made


class Shown:
    """A notebook in which the timeline stands; what the page received, and what went wrong in it."""

    def __init__(self, jupyterlab: JupyterLab, folder: Path) -> None:
        self.page = page = jupyterlab.page
        self.folder = folder
        self.errors: list[str] = []
        self.frames: list[int] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("websocket", lambda socket: socket.on("framereceived", lambda data: self.frames.append(len(data))))
        self.notebook = jupyterlab.open(folder / "timeline.ipynb")
        self.notebook.run(SETUP_CELL, timeout_s=120)
        self.notebook.run(VIEW_CELL)
        self.root = self.notebook.cell(VIEW_CELL).locator(".gpulab-tl")
        self.root.wait_for(timeout=60_000)
        self.painted()

    def stat(self, name: str) -> Any:
        return self.root.evaluate("(root, name) => root.dataset[name] ?? root.gpulabStats[name]", name)

    def painted(self, more_than: int = 0) -> int:
        """Until everything wanted is on screen, more often than so many times."""
        for _ in range(1000):
            count = int(self.stat("painted") or 0)
            if count > more_than:
                return count
            self.page.wait_for_timeout(50)
        raise AssertionError(f"not painted: {self.root.inner_text()}")

    def settled(self) -> None:
        """Until nothing is painted any more."""
        before = -1
        while (count := self.painted()) != before:
            before = count
            self.page.wait_for_timeout(400)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.page.wait_for_timeout(60)

    def focus(self) -> None:
        """The lanes have the focus, and nothing is selected or open."""
        self.page.mouse.move(2, 2)
        self.root.locator(".gpulab-tl-stage").focus()
        self.press("Escape", "Escape", "0")
        self.page.wait_for_timeout(300)

    def printed(self, index: int) -> Any:
        """What a cell prints as JSON, run now."""
        text = self.notebook.run(index).locator(".jp-OutputArea-output").last.inner_text()
        return json.loads(text.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def shown(jupyterlab: JupyterLab, folder: Path) -> Iterator[Shown]:
    made = Shown(jupyterlab, folder)
    yield made
    made.notebook.close()


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def written(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}\n")

    return written


def test_it_opens_on_a_million_events(shown, tell):
    assert "large" in shown.root.inner_text()
    assert shown.errors == []
    assert shown.notebook.cell(VIEW_CELL).locator("img").first.is_hidden(), "the picture stepped aside"
    first_ms, tiles = float(shown.stat("firstPaintMs")), shown.stat("bytes")
    tell(f"first paint {first_ms:.0f} ms after the header arrived, from tiles of {tiles} bytes")


def test_zoom_and_pan_paint_frames_and_no_view_change_costs_more_than_a_message(shown, tell):
    shown.focus()
    stage = shown.root.locator(".gpulab-tl-stage")
    box = stage.bounding_box()
    shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    shown.root.evaluate("root => { root.gpulabStats.frames.length = 0 }")
    costs = []
    turns = (("wheel", -240, 7), ("key", "ArrowRight", 4), ("wheel", 240, 9), ("key", "ArrowLeft", 3))
    for kind, what in ((kind, what) for kind, what, count in turns for _ in range(count)):
        before = len(shown.stat("bytes"))
        shown.page.mouse.wheel(0, what) if kind == "wheel" else shown.page.keyboard.press(what)
        shown.page.wait_for_timeout(250)
        costs.append(sum(shown.stat("bytes")[before:]))
    frames = shown.stat("frames")
    assert len(frames) > 50
    assert max(costs) <= MOST_MESSAGE
    assert max(shown.frames) <= MOST_MESSAGE, "no message to the page is larger, whatever it holds"
    rate = 1000 / statistics.median(frames)
    worst = sorted(frames)[int(0.95 * len(frames))]
    tell(f"{len(frames)} frames, median {rate:.0f} a second, 95 % within {worst:.0f} ms; {max(costs)} bytes for a view")


def test_keys_alone_lead_from_focus_to_a_selected_span_that_python_reads(shown):
    shown.focus()
    shown.press(*["ArrowUp"] * 12, "ArrowDown", "ArrowDown", *["+"] * 9)
    chosen = shown.root.locator('[data-panel="chosen"]')
    for _ in range(10):  # Enter selects, or zooms in where what is there is too fine to select
        shown.settled()
        shown.press("Enter")
        if chosen.is_visible():
            break
    assert chosen.is_visible(), shown.root.locator(".gpulab-tl-unseen").first.inner_text()
    selected = shown.printed(SELECTED_CELL)
    assert selected["lane"] == "main thread"
    assert selected["side"] == "large"
    assert selected["dur_ns"] > 0
    assert selected["name"] in shown.root.inner_text()


def test_search_finds_a_kernel_and_enter_goes_there(shown):
    shown.focus()
    shown.press("/")
    shown.page.keyboard.type(RARE[:14])
    shown.root.get_by_role("option").first.wait_for()
    assert "1 found" in shown.root.inner_text()
    before = shown.painted()
    shown.press("Enter")
    shown.painted(before)
    selected = shown.printed(SELECTED_CELL)
    assert selected["name"] == RARE
    assert selected["kind"] == "kernel"
    assert selected["stream"] == 7


def test_a_brushed_window_has_the_ledger_that_analysis_works_out(shown):
    shown.focus()
    shown.press("+", "ArrowRight")
    shown.settled()
    shown.press("b")
    items = shown.root.locator(".gpulab-tl-parts li")
    items.first.wait_for()
    seen = dict(map(parsed, items.all_inner_texts()))
    told = shown.printed(LEDGER_CELL)
    start, end = told.pop("window")
    known = {label: ns for label, ns in told.items() if ns}
    assert set(seen) == set(known)
    for label, (ns, rounding) in seen.items():
        assert abs(ns - known[label]) <= rounding + 1, label
    assert sum(known.values()) == end - start


def parsed(text: str) -> tuple[str, tuple[float, float]]:
    """A label, its time in ns and by how much that may be rounded."""
    label, number, unit = re.fullmatch(r"\s*(.*?) ([\d.,]+) (s|ms|us|µs|ns) .*", text, re.DOTALL).groups()
    size = {"s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3, "ns": 1.0}[unit]
    decimals = len(number.partition(".")[2])
    return label, (float(number.replace(",", "")) * size, 0.5 * 10.0**-decimals * size)


def test_it_answers_while_a_cell_runs_and_the_users_figure_is_kept(shown):
    shown.focus()
    cell = shown.notebook.start(BUSY_CELL)
    shown.page.wait_for_timeout(1500)
    for key in ("Home", *"++++++++", "ArrowRight", "ArrowRight"):
        before = shown.painted()
        shown.root.locator(".gpulab-tl-stage").focus()
        shown.press(key)
        shown.painted(before)
    shown.press("/")
    shown.page.keyboard.type("softmax")
    shown.root.get_by_role("option").first.wait_for()
    assert shown.notebook.prompt(BUSY_CELL) == "[*]:", "all that was while the cell ran"
    (shown.folder / "enough").touch()
    shown.notebook.wait(BUSY_CELL)
    assert json.loads(cell.locator("pre").first.inner_text()) == {"lines": 1, "asked": True}
    assert cell.locator("img").count() == 1, "the figure is shown, once"
    assert shown.errors == []


def test_python_moves_it_to_the_evidence_of_a_finding(shown):
    shown.focus()
    before = shown.painted()
    shown.notebook.run(SHOW_CELL)
    shown.painted(before)
    shown.settled()
    shown.page.wait_for_timeout(300)  # the window is told a moment later
    start, end = shown.printed(LEDGER_CELL)["window"]
    assert 3_000_000 < end - start < 6_000_000, "one wait of 3 ms and what is around it"


def test_the_saved_notebook_holds_the_picture_and_little_more(shown, tell):
    import nbformat

    shown.notebook.save()
    path = shown.folder / "timeline.ipynb"
    [output] = nbformat.read(path, 4).cells[VIEW_CELL].outputs
    assert set(output["data"]) == {"text/html", "text/plain"}
    grown = len(json.dumps(output))
    assert grown <= MOST_GROWTH
    tell(f"the notebook grows by {grown / 1e3:.0f} kB for a timeline of a million events")


def test_reopened_without_a_kernel_it_shows_the_picture_trusted_or_not(shown, jupyterlab):
    import nbformat

    shown.notebook.save()
    saved = nbformat.read(shown.folder / "timeline.ipynb", 4)
    nbformat.write(saved, shown.folder / "trusted.ipynb")
    saved.metadata["from"] = "somebody else"  # another content: the signature is no longer known here
    nbformat.write(saved, shown.folder / "stranger.ipynb")
    # Not in the page of the timeline: there its model would find its place in the copy as well.
    assert reopened(jupyterlab.read(shown.folder / "trusted.ipynb")) is True
    assert reopened(jupyterlab.read(shown.folder / "stranger.ipynb")) is False


def reopened(notebook: Notebook) -> bool:
    """The picture is seen in the notebook in front; gives whether that is trusted."""
    cell = notebook.cell(VIEW_CELL)
    cell.scroll_into_view_if_needed()
    cell.locator("img").first.wait_for(state="visible")
    assert "recorded on Made GPU" in cell.inner_text()
    assert cell.locator(".gpulab-tl").count() == 0
    front = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    assert "No Kernel" in front.locator(".jp-NotebookPanel-toolbar").inner_text()
    assert "widget" not in front.locator(".jp-OutputArea").nth(1).inner_text()
    return bool(notebook.page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted"))


def test_a_reloaded_page_gets_the_timeline_back_from_the_living_kernel(shown, jupyterlab):
    shown.notebook.save()
    page = jupyterlab.context.new_page()
    notebook = Notebook(page, jupyterlab.server, jupyterlab.name(shown.folder / "timeline.ipynb"))
    notebook.cell(VIEW_CELL).locator(".gpulab-tl[data-painted]").wait_for(timeout=60_000)
    page.close()
