"""The timeline of a million events in JupyterLab: drawing, keyboard use, queries, saving and reopening.

Measurements (first paint, frames, message sizes, growth of the notebook) are printed. Times are never asserted.
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

from gpulab.views.timeline.scene.scene import build_scene
from gpulab.views.timeline.view import TimelineView
from tests.support.front_end.browser import OPEN_MS, Notebook
from tests.support.front_end.services import JupyterLab
from tests.support.runs.large_run import RARE

pytestmark = pytest.mark.browser

MAX_MESSAGE, MAX_GROWTH = 150_000, 300_000
SETUP = f"""
import json, time
from pathlib import Path
import matplotlib.pyplot as plt
from tests.support.runs.large_run import diagnosis_of, large_run
from gpulab.intervals import covered_ns
from {build_scene.__module__} import {build_scene.__name__} as build
from {TimelineView.__module__} import {TimelineView.__name__}
diagnosis = diagnosis_of(large_run())
view = {TimelineView.__name__}(build(diagnosis))
"""
BUSY = """
plt.plot([3, 1, 2], label="a line of the user")
until = time.monotonic() + 60
while time.monotonic() < until and not Path("enough").exists():
    sum(range(1000))
plt.legend()
print(json.dumps({"lines": len(plt.gca().lines), "asked": Path("enough").exists()}))
"""
LEDGER = """
spans = {part.label: diagnosis.ledger.spans[part.key] for part in diagnosis.ledger.parts}
times = {name: int(covered_ns(each, *view.window)) for name, each in spans.items()}
print(json.dumps({"window": view.window, **times}))
"""
CELLS = (SETUP, "view", BUSY, LEDGER, "print(json.dumps(view.selected))", "view.show('no_workers')")
SETUP_CELL, VIEW_CELL, BUSY_CELL, LEDGER_CELL, SELECTED_CELL, SHOW_CELL = range(6)


@pytest.fixture(scope="module")
def folder(jupyterlab: JupyterLab) -> Path:
    import nbformat

    path = jupyterlab.subfolder("timeline")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path / "timeline.ipynb")
    return path


class TimelineNotebook:
    """A notebook with a timeline, the sizes of the messages that the page received, and its errors."""

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
        self.root.wait_for(timeout=OPEN_MS)
        self.painted()

    def stat(self, name: str) -> Any:
        return self.root.evaluate("(root, name) => root.dataset[name] ?? root.gpulabStats[name]", name)

    def painted(self, more_than: int = 0) -> int:
        """Wait until the timeline has been painted completely more than `more_than` times; return the count."""
        for _ in range(1000):
            count = int(self.stat("painted") or 0)
            if count > more_than:
                return count
            self.page.wait_for_timeout(50)
        raise AssertionError(f"not painted: {self.root.inner_text()}")

    def settled(self) -> None:
        """Wait until nothing more is painted."""
        before = -1
        while (count := self.painted()) != before:
            before = count
            self.page.wait_for_timeout(400)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.page.wait_for_timeout(60)

    def focus(self) -> None:
        """Focus the lanes with nothing selected and no panel open."""
        self.page.mouse.move(2, 2)
        self.root.locator(".gpulab-tl-stage").focus()
        self.press("Escape", "Escape", "0")
        self.page.wait_for_timeout(300)

    def printed(self, index: int) -> Any:
        """Run a cell and return the JSON that it prints."""
        text = self.notebook.run(index).locator(".jp-OutputArea-output").last.inner_text()
        return json.loads(text.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def timeline(jupyterlab: JupyterLab, folder: Path) -> Iterator[TimelineNotebook]:
    notebook = TimelineNotebook(jupyterlab, folder)
    yield notebook
    notebook.notebook.close()


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def write(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}\n")

    return write


@pytest.mark.full
def test_it_opens_on_a_million_events(timeline, report):
    assert "large" in timeline.root.inner_text()
    assert timeline.errors == []
    assert timeline.notebook.cell(VIEW_CELL).locator("img").first.is_hidden(), "the timeline replaces the picture"
    first_ms, tiles = float(timeline.stat("firstPaintMs")), timeline.stat("bytes")
    report(f"first paint {first_ms:.0f} ms after the header arrived, from tiles of {tiles} bytes")


@pytest.mark.night
def test_zoom_and_pan_paint_frames_and_the_tiles_of_a_view_fit_into_a_message(timeline, report):
    timeline.focus()
    stage = timeline.root.locator(".gpulab-tl-stage")
    box = stage.bounding_box()
    timeline.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    timeline.root.evaluate("root => { root.gpulabStats.frames.length = 0 }")
    costs = []
    turns = (("wheel", -240, 7), ("key", "ArrowRight", 4), ("wheel", 240, 9), ("key", "ArrowLeft", 3))
    for kind, amount in ((kind, amount) for kind, amount, count in turns for _ in range(count)):
        before = len(timeline.stat("bytes"))
        timeline.page.mouse.wheel(0, amount) if kind == "wheel" else timeline.page.keyboard.press(amount)
        timeline.page.wait_for_timeout(250)
        costs.append(sum(timeline.stat("bytes")[before:]))
    frames = timeline.stat("frames")
    assert len(frames) > 50
    assert max(costs) <= MAX_MESSAGE
    assert max(timeline.frames) <= MAX_MESSAGE, "no message to the page is larger"
    rate = 1000 / statistics.median(frames)
    worst = sorted(frames)[int(0.95 * len(frames))]
    report(
        f"{len(frames)} frames, median {rate:.0f} a second, 95 % within {worst:.0f} ms; {max(costs)} bytes for a view"
    )


@pytest.mark.full
def test_python_reads_an_event_that_was_selected_with_keys_alone(timeline):
    timeline.focus()
    timeline.press(*["ArrowUp"] * 12, "ArrowDown", "ArrowDown", *["+"] * 9)
    panel = timeline.root.locator('[data-panel="selection"]')
    for _ in range(10):  # Enter selects an event, or zooms in if the events are too short
        timeline.settled()
        timeline.press("Enter")
        if panel.is_visible():
            break
    assert panel.is_visible(), timeline.root.locator(".gpulab-tl-announcer").first.inner_text()
    selected = timeline.printed(SELECTED_CELL)
    assert selected["lane"] == "main thread"
    assert selected["side"] == "large"
    assert selected["dur_ns"] > 0
    assert selected["name"] in timeline.root.inner_text()


def test_search_finds_a_kernel_and_enter_goes_there(timeline):
    timeline.focus()
    timeline.press("/")
    timeline.page.keyboard.type(RARE[:14])
    timeline.root.get_by_role("option").first.wait_for()
    assert "1 found" in timeline.root.inner_text()
    before = timeline.painted()
    timeline.press("Enter")
    timeline.painted(before)
    selected = timeline.printed(SELECTED_CELL)
    assert selected["name"] == RARE
    assert selected["kind"] == "kernel"
    assert selected["stream"] == 7


def test_a_brushed_window_has_the_ledger_of_the_analysis(timeline):
    timeline.focus()
    timeline.press("+", "ArrowRight")
    timeline.settled()
    timeline.press("b")
    items = timeline.root.locator(".gpulab-tl-parts li")
    items.first.wait_for()
    displayed = dict(map(parse_part, items.all_inner_texts()))
    ledger = timeline.printed(LEDGER_CELL)
    start, end = ledger.pop("window")
    expected = {label: ns for label, ns in ledger.items() if ns}
    assert set(displayed) == set(expected)
    for label, (ns, rounding) in displayed.items():
        assert abs(ns - expected[label]) <= rounding + 1, label
    assert sum(expected.values()) == end - start


def parse_part(text: str) -> tuple[str, tuple[float, float]]:
    """Return a label, its time in ns and the largest rounding error of that time."""
    label, number, unit = re.fullmatch(r"\s*(.*) ([\d.,]+) (s|ms|us|µs|ns) .*", text, re.DOTALL).groups()
    size = {"s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3, "ns": 1.0}[unit]
    decimals = len(number.partition(".")[2])
    return label, (float(number.replace(",", "")) * size, 0.5 * 10.0**-decimals * size)


@pytest.mark.full
def test_it_answers_while_a_cell_runs_and_keeps_the_figure_of_the_user(timeline):
    timeline.focus()
    cell = timeline.notebook.start(BUSY_CELL)
    timeline.page.wait_for_timeout(1500)
    for key in ("Home", *"++++++++", "ArrowRight", "ArrowRight"):
        before = timeline.painted()
        timeline.root.locator(".gpulab-tl-stage").focus()
        timeline.press(key)
        timeline.painted(before)
    timeline.press("/")
    timeline.page.keyboard.type("softmax")
    timeline.root.get_by_role("option").first.wait_for()
    assert timeline.notebook.prompt(BUSY_CELL) == "[*]:", "the cell is still running"
    (timeline.folder / "enough").touch()
    timeline.notebook.wait(BUSY_CELL)
    assert json.loads(cell.locator("pre").first.inner_text()) == {"lines": 1, "asked": True}
    assert cell.locator("img").count() == 1, "the figure is shown, once"
    assert timeline.errors == []


def test_python_moves_it_to_the_evidence_of_a_finding(timeline):
    timeline.focus()
    before = timeline.painted()
    timeline.notebook.run(SHOW_CELL)
    timeline.painted(before)
    timeline.settled()
    timeline.page.wait_for_timeout(300)  # the window is sent with a delay
    start, end = timeline.printed(LEDGER_CELL)["window"]
    assert 3_000_000 < end - start < 6_000_000, "one wait of 3 ms and what is around it"


def test_the_saved_notebook_contains_the_picture_and_little_more(timeline, report):
    import nbformat

    timeline.notebook.save()
    path = timeline.folder / "timeline.ipynb"
    [output] = nbformat.read(path, 4).cells[VIEW_CELL].outputs
    assert set(output["data"]) == {"text/html", "text/plain"}
    growth = len(json.dumps(output))
    assert growth <= MAX_GROWTH
    report(f"the notebook grows by {growth / 1e3:.0f} kB for a timeline of a million events")


def test_reopened_without_a_kernel_it_shows_the_picture_trusted_or_not(timeline, jupyterlab):
    import nbformat

    timeline.notebook.save()
    saved = nbformat.read(timeline.folder / "timeline.ipynb", 4)
    nbformat.write(saved, timeline.folder / "trusted.ipynb")
    saved.metadata["from"] = "somebody else"  # changed content has no known signature
    nbformat.write(saved, timeline.folder / "untrusted.ipynb")
    # Use another page: in the page of the timeline, its model would find its element in the copy as well.
    assert is_trusted(jupyterlab.read(timeline.folder / "trusted.ipynb")) is True
    assert is_trusted(jupyterlab.read(timeline.folder / "untrusted.ipynb")) is False


def is_trusted(notebook: Notebook) -> bool:
    """Check that the notebook in front shows the picture, and return whether it is trusted."""
    cell = notebook.cell(VIEW_CELL)
    cell.scroll_into_view_if_needed()
    cell.locator("img").first.wait_for(state="visible")
    assert "recorded on Made GPU" in cell.inner_text()
    assert cell.locator(".gpulab-tl").count() == 0
    front = notebook.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    front.locator(".jp-NotebookPanel-toolbar").get_by_text("No Kernel").wait_for()
    assert "widget" not in front.locator(".jp-OutputArea").nth(1).inner_text()
    return bool(notebook.page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted"))


@pytest.mark.full
def test_a_reloaded_page_gets_the_timeline_back_from_the_running_kernel(timeline, jupyterlab):
    timeline.notebook.save()
    page = jupyterlab.context.new_page()
    notebook = Notebook(page, jupyterlab.server, jupyterlab.name(timeline.folder / "timeline.ipynb"))
    notebook.cell(VIEW_CELL).locator(".gpulab-tl[data-painted]").wait_for(timeout=OPEN_MS)
    page.close()
